"""Inputs of one call of a kernel, and what features of its matmul change in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from gemmgen.module import MatmulFunction
from gemmgen.numerics.encoding import elements_per_byte, pieces
from gemmgen.numerics.matrices import Layout
from gemmgen.problem import Shape
from gemmgen.problem.operations import BLOCK_SCALES


@dataclass(frozen=True)
class ComputedRows:
    """The rows of D that a call computes, in the order of the product, where they lie in D.

    They are counted without the rows between them. No more of D is copied than a slice has.
    """

    d: Tensor
    """D as one matrix [rows, N]."""
    ranges: tuple[tuple[int, int], ...]
    """First row of each part of D that is computed, and the row after its last one."""
    index: Tensor | None = None
    """Row of `d` for each row in `ranges`, if an index scatters them."""
    kept: Tensor | None = None
    """Which rows of the product are in D; None if all are."""

    def __len__(self) -> int:
        return sum(end - first for first, end in self.ranges)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return a slice of the rows, as a view if they lie one after the other."""
        start, stop, _ = rows.indices(len(self))
        found: list[Tensor] = []
        for first, end in self.ranges:
            own = slice(first + max(0, start), min(end, first + stop))
            if own.start < own.stop:
                found.append(self.d[own] if self.index is None else self.d[self.index[own]])
            start, stop = start - (end - first), stop - (end - first)
        if len(found) == 1:
            return found[0]
        return torch.cat(found) if found else self.d[:0]

    def parts(self) -> Iterator[Tensor]:
        """Yield all of the rows in parts, each as a view unless an index scatters them."""
        for first, end in self.ranges:
            if self.index is None:
                yield self.d[first:end]
                continue
            for (index,) in pieces(self.index[first:end]):
                yield self.d[index]


class Numbers(Protocol):
    """Changes of one feature of a matmul to the inputs of a call and to their exact result.

    By default, a method changes nothing.
    """

    def tensors(self, layout: Layout) -> Mapping[str, Callable[[], Tensor]]:  # noqa: ARG002
        """Return functions that make the tensors which a call has for the feature, by their keywords.

        A tensor is made when its function is called, after A and B. A feature may draw numbers before, to
        keep the order in which a seed gives numbers to tensors.
        """
        return {}

    def parts(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs of plain matmuls whose results, one after the other, are the rows of the product.

        The exact result is computed from each of them as if the matmul did not have the feature.
        """
        yield inputs

    def rows(self, inputs: Inputs, rows: ComputedRows) -> ComputedRows:  # noqa: ARG002
        """Return the rows of D that are computed, of the rows without the feature."""
        return rows


@dataclass(frozen=True)
class Inputs:
    """A [M, K], B [K, N], and what else the spec takes: C [M, N], vectors [M] or [N], a scale [1].

    B of a matmul with several accumulators has a block of N columns for each. With groups of rows, B is
    [G, K, N]. If they lie apart, A is [G, M, K].
    e2m1 is uint8 with two elements of K in a byte: A [M, K/2], B [K/2, N]. Scales of blocks are
    [M, ceil(K / vector)] and [N, ceil(K / vector)], or have a row for each block of columns of B.
    """

    a: Tensor
    b: Tensor
    extras: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType[str, Tensor]({}))
    """Other inputs by their keywords."""
    b_blocks: int = 1
    """Blocks of N columns that B has."""
    sides: tuple[Numbers, ...] = field(kw_only=True)
    """The features of the matmul. The last one changes the inputs first, and the rows of D last."""

    @property
    def shape(self) -> Shape:
        """M, N and K, all in elements: M is the rows of A, or of its index."""
        k = self.a.shape[-1] * elements_per_byte(self.a.dtype)
        m = len(self.extras["a_rows"]) if "a_rows" in self.extras else self.a.shape[-2]
        return m, self.b.shape[-1] // self.b_blocks, k

    def computed_rows(self, d: Tensor) -> ComputedRows:
        """Return the rows of D that the call computes; all of D unless a feature leaves some out.

        Rows that an index scatters are in the order of the product, without those that it drops.
        """
        flat = d.flatten(0, -2)
        rows = ComputedRows(flat, ((0, len(flat)),))
        for side in self.sides:
            rows = side.rows(self, rows)
        return rows

    def parts(self) -> Iterator[Inputs]:
        """Yield the inputs of the plain matmuls that the product is made of, in the order of its rows."""
        found = iter((self,))
        for side in reversed(self.sides):
            found = chain.from_iterable(map(side.parts, found))
        return found

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """A, B and all other inputs."""
        return (self.a, self.b, *self.extras.values())

    def packed(self, pack_scales: Callable[[Tensor], Tensor], names: Sequence[str] = BLOCK_SCALES) -> Inputs:
        """Return them with these of the scales of blocks as a module's ``pack_scales`` makes them."""
        extras = {
            name: pack_scales(tensor) if name in names else tensor for name, tensor in self.extras.items()
        }
        return replace(self, extras=MappingProxyType(extras))

    def call(self, matmul: MatmulFunction, out: Tensor | None = None) -> Tensor:
        """Return the result of a generated ``matmul`` for these inputs, written into ``out`` if given."""
        into = {} if out is None else {"out": out}
        found = matmul(self.a, self.b, **self.extras, **into)
        return found[0] if isinstance(found, tuple) else found
