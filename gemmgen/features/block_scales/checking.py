"""The scales of blocks of a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from gemmgen.features.block_scales.other_scales import other_scales, packed_scales
from gemmgen.features.block_scales.torch_scaled import block_scaled_mm
from gemmgen.numerics.matrices import Draw, Layout, powers_of_two
from gemmgen.numerics.side import TWO_RUNS, CheckGroup, Checking
from gemmgen.numerics.torch_call import Head
from gemmgen.plan.access import TensorAccess
from gemmgen.problem import Matmul
from gemmgen.problem.matmul import Operand
from gemmgen.problem.operations import BLOCK_SCALES

E2M1_RMS: Final = math.sqrt((0.5**2 + 1 + 1.5**2 + 2**2 + 3**2 + 4**2 + 6**2) / 8)
"""Root mean square of all numbers of e2m1, equally likely: 2.93."""
BLOCK_SCALE_RMS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "scale": math.sqrt(sum(4.0**exponent for exponent in range(-2, 3)) / 5),
        "float": math.sqrt((2**3 - 0.5**3) / 3 / (2 - 0.5)),
    }
)
"""Root mean square of block scales by the kind of their type, before all are reduced: 2.06 for powers of two
from 2**-2 to 2**2, equally likely, and 1.32 for uniform numbers from 0.5 to 2.
"""


@dataclass(frozen=True)
class ScaleNumbers(Checking):
    """Numbers of a matmul whose A or B has scales of blocks."""

    problem: Matmul

    def tensors(self, layout: Layout) -> Mapping[str, Callable[[], Tensor]]:
        """Return the scales of A and of B."""
        scaled = (name for name in BLOCK_SCALES if self.problem.operand(name[0]).scale)
        return {name: partial(self._scales, name, layout) for name in scaled}

    def _scales(self, keyword: str, layout: Layout) -> Tensor:
        """Return scales as they are passed; if threads read them, their rows lie in memory without a gap."""
        problem, (m, n, k) = self.problem, layout.shape
        operand = problem.operand(keyword[0])
        assert operand.scale is not None
        rows, blocks = operand.scale.extents(m if keyword == "a_scale" else problem.columns_of_b(n), k)
        matrix = partial(layout.matrix, operand.scale.dtype.name, fill=partial(_drawn, operand))
        if problem.packs_scales:
            return matrix(rows, blocks)
        if TensorAccess(problem).scales_groups_of_rows:
            stacked = partial(matrix, leading=problem.leading_extents(keyword[0]), may_guard=False)
            return stacked(blocks, rows).mT if keyword == "a_scale" else stacked(rows, blocks)
        if operand.scale.format.rows == 1:
            return matrix(blocks, rows).T
        return matrix(rows, blocks, may_guard=False)

    def check_groups(self) -> tuple[CheckGroup, ...]:
        """Return the group of packed scales, or that of scales with other strides.

        Packed scales come first: packing allocates memory that a later run would get instead of the poisoned
        block that is meant for D.
        """
        if self.problem.packs_scales:
            return (CheckGroup("packed scales", packed_scales, TWO_RUNS, first=True),)
        return (CheckGroup("other scales", other_scales, TWO_RUNS),)

    def head(self, *, fast_accum: bool) -> Head | None:  # noqa: ARG002
        """Return the call of torch that multiplies block-scaled operands."""
        return block_scaled_mm(self.problem)


def side_of(problem: Matmul) -> Checking | None:
    """Return the side of a matmul's block scales; None if it has none."""
    return ScaleNumbers(problem) if problem.block_scaled else None


def _drawn(operand: Operand, extents: tuple[int, int], draw: Draw) -> Tensor:
    """Return scales; random ones bring the size of their operand as close to 1 as a power of two can."""
    assert operand.scale is not None
    if draw.integers:
        return powers_of_two(extents, draw)
    generator, device, dtype = draw.generator, draw.generator.device, operand.scale.dtype
    elements = E2M1_RMS if operand.dtype.coded else 1.0
    smaller = 2.0 ** -round(math.log2(elements * BLOCK_SCALE_RMS[dtype.kind]))
    if dtype.kind == "scale":
        return smaller * 2.0 ** torch.randint(-2, 3, extents, generator=generator, device=device)
    return smaller * (torch.rand(extents, generator=generator, device=device) * 1.5 + 0.5)
