"""The tensors of a benchmark: the same for both arms, and enough of them to leave the cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmgen.bench.protocol import Protocol
from gemmgen.bench.record import Dtypes
from gemmgen.problem import Shape
from gemmgen.problem.inputs import Inputs, random_inputs
from gemmgen.problem.matrix import Matrix
from gemmgen.spec.model import Spec


@dataclass(frozen=True)
class InputSet:
    """What one call takes, and d [M, N] for its result."""

    inputs: Inputs
    """As the spec has them, for the reference."""
    timed: Inputs
    """What the calls get: the same, but scales of blocks are packed already, as those of weights would be."""
    d: Tensor


def dtypes_of(spec: Spec) -> Dtypes:
    """Return the element types as the spec has them."""
    operands = spec.operands
    return Dtypes(
        a=operands.a.dtype,
        b=operands.b.dtype,
        d=operands.d.dtype,
        c=operands.c.dtype if operands.c else None,
        a_scale=operands.a.scale.format if operands.a.scale else None,
        b_scale=operands.b.scale.format if operands.b.scale else None,
    )


def input_sets(
    shape: Shape,
    spec: Spec,
    l2_bytes: int,
    generator: torch.Generator,
    protocol: Protocol,
    pack_scales: Callable[[Tensor], Tensor] | None = None,
) -> tuple[InputSet, ...]:
    """Return the sets that calls are rotated over: random and normalized inputs, and poisoned results."""
    set_bytes = dtypes_of(spec).moved_bytes(shape)
    count = min(protocol.max_input_sets, math.ceil(protocol.l2_multiple * l2_bytes / set_bytes))
    return tuple(_input_set(shape, spec, generator, pack_scales) for _ in range(count))


def _input_set(
    shape: Shape,
    spec: Spec,
    generator: torch.Generator,
    pack_scales: Callable[[Tensor], Tensor] | None,
) -> InputSet:
    d = Matrix.poisoned(*shape[:2], spec.operands.d.dtype, generator.device).view
    inputs = random_inputs(shape, spec, generator, normalized=True)
    return InputSet(inputs, inputs.packed(pack_scales) if pack_scales else inputs, d)
