"""Inputs with the tensors of the features that a matmul has, and the rows of groups in them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gemmgen.features.checking import sides_of
from gemmgen.features.groups.checking import GroupNumbers
from gemmgen.numerics.drawing import drawn_inputs
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Draw, Layout
from gemmgen.problem import Matmul, Shape


def random_inputs(
    shape: Shape,
    problem: Matmul,
    generator: torch.Generator,
    *,
    guarded: bool = False,
    normalized: bool = False,
    misaligned: bool = False,
) -> Inputs:
    """Return random inputs for a problem [M, N, K]."""
    layout = Layout(shape, generator.device, Draw(generator), guarded=guarded, misaligned=misaligned)
    return drawn_inputs(layout, problem, sides_of(problem), normalized=normalized)


def integer_inputs(
    shape: Shape, problem: Matmul, generator: torch.Generator, *, hostile: bool = False
) -> Inputs:
    """Return small integers for a problem [M, N, K]."""
    draw = Draw(generator, integers=True, hostile=hostile)
    return drawn_inputs(Layout(shape, generator.device, draw), problem, sides_of(problem))


def bounds_of(problem: Matmul, inputs: Inputs) -> Iterator[tuple[int, int]]:
    """Yield the first row, or the first K, of each group, and the one after its last."""
    assert problem.groups is not None
    return GroupNumbers(problem, problem.groups).bounds(inputs)
