"""How TMA and threads reach the tensors of a matmul: axes of descriptors, and what places are counted by.

All of it follows from the matmul, whatever the tile is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmgen.problem import Matmul
from gemmgen.problem.matmul import TMA_PLACE_BITS
from gemmgen.problem.operations import OPERATIONS

NUnit = Literal["scales of D", "scales of B", "blocks of weights", "rows of TMA"]
"""Why a number divides N: columns of D or of B share a scale, or a row has whole units of 16 bytes."""


@dataclass(frozen=True)
class TensorAccess:
    """How a kernel reaches the tensors of a matmul."""

    problem: Matmul

    def has_box_axis(self, name: str) -> bool:
        """Return True if the descriptor of A, B or ``b_scale`` has a dimension for groups or boxes of rows.

        Matrices with K along their rows have it, so that a load ends with the K of its group. If K is along
        the columns, the rows of all groups are one matrix. If all groups share A or B, both have the
        dimension: the coordinate is 0 in the shared matrix. Scales of a weight that threads decode have a row
        for a block of K, and K may end within one.
        """
        if self.problem.groups is None:
            return False
        if name == "b_scale":
            return self.problem.b.decoded is not None
        return self.problem.operand(name).major == "mn" or self.problem.groups.broadcast is not None

    @property
    def stores_boxes(self) -> bool:
        """True if TMA stores the rows of a group through a descriptor of overlapping boxes of D's rows."""
        return self.problem.groups is not None and not self.problem.scatters_d

    def has_row_boxes(self, tensor: str) -> bool:
        """Return True if a descriptor of D or of saved sums is over overlapping boxes of rows.

        So TMA stores the rows of a group alone.
        """
        return self.stores_boxes and tensor in ("d", "saved")

    @property
    def reads_c_of_others(self) -> bool:
        """True if a tile at the end of a group also loads rows of C of the next group, so that D cannot be C.

        A C of several matrices is described as one tensor of rows. TMA cannot load the rows of a group alone:
        boxes of rows that end with the group may begin ahead of the tensor, and a load reads there.
        """
        return self.problem.c is not None and self.problem.groups is not None and self.problem.d_blocks > 1

    @property
    def d_may_be_c(self) -> bool:
        """True if a call may pass C as the memory of D."""
        return self.problem.c is not None and not self.reads_c_of_others

    def has_block_axis(self, tensor: str) -> bool:
        """Return True if a descriptor of C, of D or of saved sums has a dimension for blocks of columns."""
        if tensor == "saved":
            return self.problem.in_blocks
        return self.problem.d_in_blocks and tensor in ("c", "d")

    def describing_function(self, tensor: str) -> str:
        """Return the function of a module that describes C, D or saved sums; empty if Triton's own does."""
        boxes, blocks = self.has_row_boxes(tensor), self.has_block_axis(tensor)
        if boxes and blocks:
            return "describe_boxes_of_blocks"
        return "describe_boxes" if boxes else "describe_blocks" * blocks

    def leading_axes(self, tensor: str) -> int:
        """Return the dimensions before rows and columns in a tensor's descriptor.

        They are for groups or for boxes of rows; of C, D and saved sums, for blocks of columns before.
        """
        if tensor in ("a", "b", "b_scale"):
            return int(self.has_box_axis(tensor))
        of_groups = tensor == "c" and self.problem.groups is not None and not self.reads_c_of_others
        return self.has_block_axis(tensor) + (of_groups or self.has_row_boxes(tensor))

    @property
    def places_b_by_n(self) -> bool:
        """True if N is part of a place in B: of a second block of columns, or of the rows of a group's B."""
        stacks_rows = (
            self.problem.groups is not None
            and not self.problem.groups.divides_k
            and not self.has_box_axis("b")
        )
        return self.problem.in_blocks or stacks_rows

    @property
    def places_columns_by_n(self) -> bool:
        """True if N is part of a place in a column operand: of its second block, or of the one of a group."""
        if self.problem.groups:
            return any(OPERATIONS[name].along == "n" for name in self.problem.vectors)
        return self.problem.in_blocks and bool(self.problem.parted_vectors)

    @property
    def scales_groups_of_rows(self) -> bool:
        """True if threads scale the sums of groups of rows; each group has its own scales of B."""
        groups = self.problem.groups
        return self.problem.scales_sums and groups is not None and not groups.divides_k

    @property
    def has_tile_scales(self) -> bool:
        """True if many columns of B have one scale in a block of K, which threads read by address."""
        scale = self.problem.b.scale
        return self.problem.scales_sums and scale is not None and scale.format.rows > 1

    @property
    def scales_from_any_row(self) -> bool:
        """True if the scales of a tile's rows begin anywhere, because groups do.

        TMA loads scales from multiples of 16 bytes on.
        """
        groups = self.problem.groups
        return self.scales_groups_of_rows and groups is not None and not groups.apart

    @property
    def loads_k_from_any_row(self) -> bool:
        """True if groups divide K anywhere, and so TMA loads boxes that begin with any row of K.

        Groups of blocks of K that have scales divide K between blocks.
        """
        return (
            self.problem.groups is not None and self.problem.groups.divides_k and not self.problem.scales_sums
        )

    @property
    def tma_vectors(self) -> tuple[str, ...]:
        """The row and column operands that TMA loads: all, or none with groups, where threads read them.

        TMA loads vectors from multiples of 16 bytes on, and a group begins at any row.
        """
        return () if self.problem.groups else self.problem.vectors

    # --- multiples that the extents of a call must be of

    @property
    def k_multiple(self) -> int:
        """The number that K must be a multiple of: threads copy rows of A in units of 16 bytes."""
        a, b = self.problem.a, self.problem.b
        unit = TMA_PLACE_BITS // a.dtype.bits if self.problem.gathers_a else 1
        return max(a.k_multiple, b.k_multiple, unit)

    @property
    def n_multiple(self) -> int:
        """N is a multiple of this number."""
        return max(self._n_multiples.values())

    @property
    def n_unit(self) -> NUnit:
        """The reason for that number, the first of several."""
        multiples = self._n_multiples
        return max(multiples, key=lambda unit: multiples[unit])

    @property
    def _n_multiples(self) -> dict[NUnit, int]:
        """The powers of two that divide N, by their reasons.

        Columns beyond N would be part of the last scale of a row of D. A scale of blocks of columns belongs
        to columns of one accumulator. Permuted blocks of weights are whole. TMA reads the second block of a
        row from column N.
        """
        problem = self.problem
        found: dict[NUnit, int] = {}
        if problem.d_scale:
            found["scales of D"] = problem.d_scale.vector
        bits = [problem.d.bits] * (problem.saves or problem.d_in_blocks)
        bits += [problem.c.bits] * problem.d_in_blocks if problem.c else []
        if problem.in_blocks:
            if self.has_tile_scales and problem.b.scale:
                found["scales of B"] = problem.b.scale.format.rows
            parted = (name for name in problem.parted_vectors if name in self.tma_vectors)
            bits += [problem.vector_dtype(name).bits for name in parted]
            bits += [problem.b.dtype.bits] * (problem.b.major == "mn")
        if (block := problem.b.permuted_block) > 1:
            found["blocks of weights"] = block // problem.b_blocks
        found["rows of TMA"] = max((TMA_PLACE_BITS // each for each in bits), default=1)
        return found

    @property
    def m_place_multiple(self) -> int:
        """The number that a place along M is a multiple of, where M lies along memory: of 16 bytes there."""
        problem = self.problem
        scales = [scale.unit for scale in (problem.a.scale, problem.d_scale) if scale]
        vectors = (name for name in self.tma_vectors if OPERATIONS[name].along == "m")
        bits = [problem.vector_dtype(name).bits for name in vectors]
        bits += [problem.a.dtype.bits] * (problem.a.major == "mn")
        return max((*scales, *(TMA_PLACE_BITS // each for each in bits)), default=1)
