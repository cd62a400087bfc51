"""Words of 32 bits, in which checkpoints of integers hold eight elements of four bits, or four of eight."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from gemmgen.integrations.weights.quantized import Bits

IN_WORD: Final = {4: 8, 8: 4}
"""Elements in a word by their bits."""
OFFSET: Final = 128
"""The number that a signed one of eight bits is stored plus."""


def require_words(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless a tensor of a checkpoint is int32 of at least two dimensions."""
    if tensor.dtype != torch.int32 or tensor.dim() < 2:
        found = f"{tensor.dtype} {[*tensor.shape]}"
        raise ValueError(f"{name} must be int32 words in a matrix, found {found}")


def bytes_of(words: Tensor) -> Tensor:
    """Return words [..., words] as bytes [..., 4 * words], the lowest one first, as they lie in memory.

    The memory is the words' own if they lie one after the other.
    """
    *rows, count = words.shape
    return words.reshape(-1).view(torch.uint8).view(*rows, 4 * count)


def signed(codes: Tensor) -> Tensor:
    """Return numbers of eight bits that are stored plus 128, as uint8, in int8."""
    return (codes ^ OFFSET).view(torch.int8)


def elements_of(words: Tensor, bits: Bits = 4) -> Tensor:
    """Return the elements [..., words * 32 / bits] of words as uint8, from the lowest bits of a word on."""
    found = bytes_of(words)
    if bits == 8:
        return found
    return torch.stack((found & 0xF, found >> 4), dim=-1).flatten(-2)


def pairs_of(elements: Tensor) -> Tensor:
    """Return elements [..., K] from 0 to 15 as bytes [..., K / 2], the one of even K in the lower half."""
    return elements[..., 0::2] | elements[..., 1::2] << 4


def vector_of(k: int, blocks: int, group_size: int | None) -> int:
    """Return the elements along K that share one of the scales of a row.

    `group_size` comes from the checkpoint's configuration: a power of two, or K, for which -1 stands; None if
    K is a multiple of it.

    Raises ValueError if K has no whole blocks and no `group_size` says their size, if that is none of the
    sizes above, and if it gives K another number of blocks.
    """
    if group_size is None:
        if k % blocks:
            raise ValueError(f"K = {k} has {blocks} scales, which do not divide it: pass the group_size")
        return k // blocks
    size = k if group_size == -1 else group_size
    if size != k and (size < 1 or size & (size - 1)):
        raise ValueError(f"group_size must be a power of two, K, or -1 for K, found {group_size}")
    if -(-k // size) != blocks:
        raise ValueError(
            f"K = {k} has scales of {blocks} blocks, and a group_size of {size} gives {-(-k // size)}"
        )
    return size
