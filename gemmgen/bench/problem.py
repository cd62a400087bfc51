"""The tensors of a benchmark: the same for both arms, and enough of them to leave the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmgen.bench.protocol import Protocol
from gemmgen.bench.record import DTYPE_BYTES
from gemmgen.bench.roofline import moved_bytes
from gemmgen.spec.model import Operands
from gemmgen.verify import Shape
from gemmgen.verify.matrix import Matrix, random_operands


@dataclass(frozen=True)
class InputSet:
    """Operands a [M, K] and b [K, N], and d [M, N] for the result."""

    a: Tensor
    b: Tensor
    d: Tensor


def input_sets(
    shape: Shape, operands: Operands, l2_bytes: int, generator: torch.Generator, protocol: Protocol
) -> tuple[InputSet, ...]:
    """Return the sets that calls are rotated over: N(0, 1), A scaled by 1 / sqrt(K), d poisoned with NaN."""
    set_bytes = moved_bytes(shape, DTYPE_BYTES[operands.a.dtype], DTYPE_BYTES[operands.d.dtype])
    count = min(protocol.max_input_sets, math.ceil(protocol.l2_multiple * l2_bytes / set_bytes))
    return tuple(_input_set(shape, operands, generator) for _ in range(count))


def _input_set(shape: Shape, operands: Operands, generator: torch.Generator) -> InputSet:
    m, n, k = shape
    a, b = random_operands(shape, operands, generator)
    a.mul_(k**-0.5)
    return InputSet(a, b, Matrix.poisoned(m, n, operands.d.dtype, generator.device).view)
