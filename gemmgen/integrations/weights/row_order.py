"""The order of K in checkpoints whose quantization may have sorted it."""

from __future__ import annotations

import torch
from torch import Tensor

from gemmgen.integrations.weights.quantized import Bits


def require_order_of_k(name: str, g_idx: Tensor | None, k: int, vector: int, bits: Bits) -> None:
    """Raise ValueError if the block of each of K elements is not the one of its place.

    A quantization with ``desc_act`` (act-order) sorts K by its importance: neighbours along K then have
    scales of different blocks. Blocks in order, but of another size than `vector`, are told apart from that.
    It waits for a GPU, once for each layer.
    """
    if g_idx is None or not g_idx.numel():
        return
    if g_idx.shape[-1] != k:
        found = g_idx.shape[-1]
        raise ValueError(f"{name} has {found} elements, and K is {k}: are these weights of {bits} bits?")
    expected = torch.arange(k, dtype=g_idx.dtype, device=g_idx.device) // vector
    if not torch.equal(g_idx, expected.expand_as(g_idx)):
        found = int(g_idx.reshape(-1, k)[0].eq(0).sum())
        by_place = torch.arange(k, dtype=g_idx.dtype, device=g_idx.device)
        if found and torch.equal(g_idx, (by_place // found).expand_as(g_idx)):
            raise ValueError(
                f"{name} has a scale for each {found} elements of K, and group_size says {vector}"
            )
        raise ValueError(
            f"{name} assigns scales to K in another order than K's own (desc_act, act-order): a kernel reads "
            f"one scale for {vector} neighbours. Quantize the model without desc_act"
        )
