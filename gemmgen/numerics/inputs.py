"""Inputs of one call of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from torch import Tensor

from gemmgen.module import MatmulFunction
from gemmgen.numerics.divided_rows import ComputedRows, computed_rows, inside, rows_of_all_groups
from gemmgen.numerics.encoding import elements_per_byte
from gemmgen.problem import Matmul, Shape
from gemmgen.problem.operations import BLOCK_SCALES


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

    @property
    def shape(self) -> Shape:
        """M, N and K, all in elements: M is the rows of A, or of its index."""
        k = self.a.shape[-1] * elements_per_byte(self.a.dtype)
        m = len(self.extras["a_rows"]) if "a_rows" in self.extras else self.a.shape[-2]
        return m, self.b.shape[-1] // self.b_blocks, k

    def rows_of_groups(self, problem: Matmul) -> Tensor | None:
        """Return the tensor that divides rows into groups; None if there is none."""
        name = problem.groups.counts if problem.groups else None
        return self.extras[name] if name else None

    def computed_rows(self, problem: Matmul, d: Tensor) -> ComputedRows:
        """Return the rows of D that belong to a group, group by group; without groups, all of D.

        Rows that an index scatters are in the order of the product, without those that it drops.
        """
        return computed_rows(problem, d, self.rows_of_groups(problem), self.extras.get("d_rows"))

    def stored_rows(self, problem: Matmul, rows: int) -> Tensor:
        """Return which rows of all groups an index scatters into a D with `rows` rows; it drops others."""
        index = self.extras["d_rows"]
        return inside(rows_of_all_groups(problem, index, self.rows_of_groups(problem)), rows)

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
