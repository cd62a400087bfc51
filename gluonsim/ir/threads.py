"""The elements of a tensor that each thread holds, register by register, as Triton 3.9 lays tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import cast

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.types import Encoding, TensorType

Basis = list[int]
"""The step along each dimension that one bit of a number makes; coordinates are sums without carry."""
RESULT_WIDTH = 2
"""Neighbouring results that a thread holds of a tensor core's tile."""
INNER_LANES, OUTER_LANES = 4, 8
"""Threads of a warp along the two dimensions of such a tile; the inner one has neighbours in one thread."""


@lru_cache(maxsize=256)
def held_elements(type_: TensorType) -> Tensor:
    """Return element numbers [registers, threads]: of the part of the tensor that one CTA holds, row-major.

    A number occurs several times if several registers hold the same element.

    Raises:
        GemmgenError: The layout is not known.
    """
    shape = type_.local_shape
    if type_.encoding is None:
        raise refusal("a tensor without a layout has no registers")
    bases = _Bases.of(type_.encoding, shape)
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    rank = len(shape)
    threads = [*bases.lanes, *bases.warps]
    coordinates = _sums(bases.registers, rank).unsqueeze(1) ^ _sums(threads, rank)
    if not coordinates.amax((0, 1)).equal(torch.tensor(shape) - 1):
        raise refusal(f"the layout {type_.encoding.kind} does not fit the shape {list(shape)}")
    return (coordinates * torch.tensor(strides)).sum(2)


def _sums(bases: Sequence[Basis], rank: int) -> Tensor:
    """Return the coordinates [numbers, dimensions] of each number of as many bits as there are bases."""
    found = torch.zeros(1, rank, dtype=torch.int64)
    for basis in bases:
        found = torch.cat([found, found ^ torch.tensor(basis)])
    return found


class _Bases:
    """The bases of a thread's registers, of a warp's threads and of the warps, from the lowest bit on."""

    def __init__(self, rank: int) -> None:
        self.registers: list[Basis] = []
        self.lanes: list[Basis] = []
        self.warps: list[Basis] = []
        self._extents = [1] * rank

    @classmethod
    def of(cls, encoding: Encoding, shape: tuple[int, ...]) -> _Bases:
        """Return the bases of a layout of a tensor that one CTA holds."""
        fields, rank = encoding.fields, len(shape)
        bases = cls(rank)
        if encoding.kind == "ttg.linear":
            bases.registers, bases.lanes, bases.warps = (
                cast("list[Basis]", fields[name]) for name in ("register", "lane", "warp")
            )
        elif encoding.kind == "ttg.slice":
            bases._slice(cast(Encoding, fields["parent"]), shape, cast(int, fields["dim"]))
        elif encoding.kind == "ttg.blocked":
            order = cast("list[int]", fields["order"])
            bases._tile(bases.registers, cast("list[int]", fields["sizePerThread"]), order)
            bases._tile(bases.lanes, cast("list[int]", fields["threadsPerWarp"]), order)
            bases._tile(bases.warps, cast("list[int]", fields["warpsPerCTA"]), order)
            bases._fit(shape, order)
            bases._drop_copies()
        elif encoding.kind in ("ttg.nvidia_mma", "ttg.dot_op"):
            bases._multiplied(encoding, shape)
        else:
            raise refusal(f"the registers of the layout {encoding.kind} are not known to the simulator")
        return bases

    def _tile(self, bases: list[Basis], extents: Sequence[int], order: Sequence[int]) -> None:
        for dim in order:
            self._along(bases, dim, extents[dim])

    def _along(self, bases: list[Basis], dim: int, extent: int) -> None:
        """Let the next bits of a number continue along a dimension."""
        for _ in range(extent.bit_length() - 1):
            bases.append([self._extents[dim] if each == dim else 0 for each in range(len(self._extents))])
            self._extents[dim] *= 2

    def _fit(self, shape: Sequence[int], order: Sequence[int]) -> None:
        """Repeat the tile in registers up to the shape; a step beyond the shape begins again at zero."""
        for dim in order:
            self._along(self.registers, dim, max(1, shape[dim] // self._extents[dim]))
        for bases in (self.registers, self.lanes, self.warps):
            bases[:] = [
                [step if step < extent else 0 for step, extent in zip(basis, shape, strict=True)]
                for basis in bases
            ]

    def _slice(self, parent: Encoding, shape: tuple[int, ...], dim: int) -> None:
        """Take the layout of a tensor that has one more dimension."""
        whole = _Bases.of(parent, (*shape[:dim], 1, *shape[dim:]))
        parts = [
            [[*basis[:dim], *basis[dim + 1 :]] for basis in bases]
            for bases in (whole.registers, whole.lanes, whole.warps)
        ]
        self.registers, self.lanes, self.warps = parts
        self._drop_copies()

    def _drop_copies(self) -> None:
        """Leave out registers in which a thread has the same elements as in others."""
        self.registers = [basis for basis in self.registers if any(basis)]

    def _multiplied(self, encoding: Encoding, shape: tuple[int, ...]) -> None:
        """Take the layout of a result or an operand of mma.sync (version 2) or wgmma (3)."""
        operand = cast("int | None", encoding.fields.get("opIdx"))
        result = encoding if operand is None else cast(Encoding, encoding.fields["parent"])
        version = result.fields.get("versionMajor")
        if len(shape) != 2 or result.kind != "ttg.nvidia_mma" or version not in (2, 3):
            raise refusal(f"the registers of the layout {encoding.kind} of {result.kind} are not known")
        width = RESULT_WIDTH if operand is None else cast(int, encoding.fields["kWidth"])
        rows, columns = cast("list[int]", result.fields["instrShape"])[:2]
        inner, outer = (1, 0) if operand != 1 else (0, 1)
        if operand is not None:
            rows, columns = (rows, 8 * width) if operand == 0 else (8 * width, 8)
        extents = rows, columns
        self._along(self.registers, inner, width)
        self._along(self.lanes, inner, INNER_LANES)
        self._along(self.lanes, outer, OUTER_LANES)
        self._along(self.registers, outer, extents[outer] // OUTER_LANES)
        self._along(self.registers, inner, extents[inner] // (width * INNER_LANES))
        warps = cast("list[int]", result.fields["warpsPerCTA"])
        for dim in (1, 0) if version == 2 else (0, 1):
            if operand is not None and dim == inner:  # all of K is in each warp
                self.warps += [[0, 0]] * (warps[dim].bit_length() - 1)
            else:
                self._along(self.warps, dim, warps[dim])
        self._fit(shape, (inner, outer))
