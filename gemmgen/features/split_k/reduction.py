"""The kernel that adds up the sums of parts of K, as its templates see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.resources import FRAGMENT_ROWS, FRAGMENT_SUMS
from gemmgen.render.arguments import TMA_UNIT_BYTES
from gemmgen.render.kernel import SCALAR, Construction, Field, last_row
from gemmgen.render.places import Constant, Place
from gemmgen.render.spelling import fit
from gemmgen.render.wgmma.k_loop import KLoop


@dataclass(frozen=True)
class ReductionView:
    """The kernel that adds up the sums of parts of K as its templates see it."""

    plan: WgmmaKernel

    @property
    def constants(self) -> Iterator[Constant]:
        """The constants of the second kernel."""
        plan = self.plan
        m, n = FRAGMENT_ROWS, plan.piece_sums // FRAGMENT_ROWS
        sums = plan.program_tile_m * plan.program_tile_n
        rows = (
            ("TILE_SUMS", sums, "of a part of a tile"),
            ("FRAGMENT_ROWS", m, "of an accumulator, which a warp has in groups of 8 columns"),
            ("FRAGMENT_SUMS", FRAGMENT_SUMS, "of such a group"),
            ("PIECE_SUMS", plan.piece_sums, "of a tile, which a program of the second kernel adds up"),
            ("PIECES", sums // plan.piece_sums, "of a tile"),
            ("PIECE_M", n if plan.swap_ab else m, ""),
            ("PIECE_N", m if plan.swap_ab else n, ""),
        )
        yield from (Constant(Place.WORK, *row) for row in rows)
        if plan.splits_side_by_side > 1:
            meaning = "whose sums are read by different threads"
            yield Constant(Place.WORK, "SPLITS_SIDE_BY_SIDE", plan.splits_side_by_side, meaning)

    @property
    def rows(self) -> str:
        """The constant that holds the rows of an accumulator, over all CTAs."""
        return self._extents[0]

    @property
    def columns(self) -> str:
        """The columns of an accumulator in one CTA."""
        return self._extents[1]

    @property
    def _extents(self) -> tuple[str, str]:
        rows, columns = KLoop(self.plan).extents
        return rows, f"({columns} // COLUMN_CTAS)" if self.column_ctas > 1 else columns

    @property
    def column_ctas(self) -> int:
        """The CTAs of a cluster that divide an accumulator's columns."""
        return self.plan.cluster_m if self.plan.swap_ab else self.plan.cluster_n

    @property
    def row_of_fragments(self) -> str:
        """The sums of 16 rows of an accumulator in one CTA."""
        return f"({self.columns} * FRAGMENT_ROWS)"

    def turned(self, row: str, column: str) -> str:
        """Return an accumulator's row and column as row and column of D."""
        return f"{column}, {row}" if self.plan.swap_ab else f"{row}, {column}"

    @property
    def piece_order(self) -> str:
        """The order of a fragment's dimensions in a piece of D: an accumulator's rows, then its columns."""
        rows, columns = "3, 1", "0, 2, 4"
        return f"({self.turned(rows, columns)})"

    @property
    def _read(self) -> tuple[str, ...]:
        """The tensors that the epilogue reads."""
        kinds = ("matrix", "vector", "scalar")
        own = (each for each in self.plan.arguments if each.kind in kinds)
        return tuple(each.name for each in own if each.tensor not in ("a", "b", "d"))

    @property
    def _strides(self) -> tuple[str, ...]:
        return ("c_stride",) if self.plan.problem.c else ()

    @property
    def numbers(self) -> str:
        """The parameters that no compilation depends on."""
        return str(("m", "n", *self._strides, "d_stride")).replace("'", '"')

    def define_kernel(self) -> str:
        """Return the kernel's head."""
        read = [f"{name}_ptr" for name in self._read]
        strides = (f"{name}: gl.int64" for name in (*self._strides, "d_stride"))
        names = ["partials_ptr", *read, "d_ptr", *strides, "m", "n"]
        return fit("def reduction_kernel(", names, "):")

    @property
    def meaning(self) -> str:
        """The arguments of the kernel, in words."""
        strides = "D's rows are `d_stride` elements apart"
        if self._strides:
            strides = "C's rows are `c_stride` elements apart, D's `d_stride`"
        return f"{strides}."

    @property
    def args(self) -> tuple[Field, ...]:
        """The fields of the aggregate that its device functions are passed."""
        read = (f"{name}_ptr" for name in self._read if name != "tensor_scale")
        extents = ("m", "n") if self.plan.problem.c or self.plan.problem.vectors else ()
        tiles = {"tiles_m": "gl.cdiv(m, PROGRAM_TILE_M)", "tiles_n": "gl.cdiv(n, PROGRAM_TILE_N)"}
        placing = [f"tiles_{dimension}" for dimension in self.plan.placing_dimensions]
        return (
            *(Field(name, SCALAR, name) for name in (*read, *self._strides, *extents)),
            *(Field(name, SCALAR, f"{name}={tiles[name]}") for name in placing),
            *(last_row(self.plan, "m"),) * self.plan.last_tile_ends_with_d,
        )

    @property
    def construction(self) -> Construction:
        """The statement that makes it."""
        return Construction("args", "ReductionArgs", self.args)

    @property
    def stores_pairs(self) -> bool:
        """True if a thread has two neighbours of a row, which it stores at once: not with swap-AB."""
        return not self.plan.swap_ab

    @property
    def all_sums(self) -> str:
        """The sums of all splits, in the order of registers."""
        return "sums" if self.plan.splits_side_by_side == 1 else "gl.sum(sums, axis=0)"

    @property
    def ends_amid_group(self) -> bool:
        """True if the last group of splits that are read side by side has fewer splits than the others."""
        return self.plan.splits % self.plan.splits_side_by_side != 0

    @property
    def d_unit(self) -> int:
        """Elements of D in 16 bytes."""
        return self.plan.d_unit

    @property
    def c_unit(self) -> int:
        """Elements of C in 16 bytes."""
        c = self.plan.problem.c
        return TMA_UNIT_BYTES // c.bytes if c else 0
