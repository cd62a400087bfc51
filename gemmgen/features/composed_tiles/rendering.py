"""The side of composed and of staggered tiles in rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.overview import counted
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.side import Rendering, SidesByMma
from gemmgen.render.wgmma.lanes import parts_of


@dataclass(frozen=True)
class ComposedTiles(Rendering):
    """The parts of the columns of a tile, of a Hopper plan."""

    plan: WgmmaKernel
    name = "composed_tiles"

    @property
    def applies(self) -> bool:
        """True if the columns of a tile are several parts."""
        return self.plan.composed

    @property
    def constants(self) -> Iterator[Constant]:
        """The columns of the parts, and of a column operand that is loaded."""
        plan, parts = self.plan, parts_of(self.plan)
        meanings = ("columns of a tile's parts: each has tiles of B, MMAs and sums of its own", "", "")
        for part, columns, meaning in zip(parts, plan.column_parts, meanings, strict=False):
            yield Constant(Place.TILE, part.columns, columns * plan.cluster_n, meaning)
        own = "of consumer 0; the other one has all but the last" if plan.staggered else ""
        yield Constant(Place.TILE, "PARTS", len(parts), own)
        if plan.staggered:
            meaning = "columns that one consumer has more than a tile, and the other one less"
            yield Constant(Place.TILE, "STAGGER_N", plan.stagger_n, meaning)
        if "n" in (OPERATIONS[vector].along for vector in plan.access.tma_vectors):
            meaning = "columns that are loaded of a column operand: a power of two"
            yield Constant(Place.OPERANDS, "VECTOR_N", plan.vector_columns * plan.cluster_n, meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The functions that place staggered parts, and that wait for one part."""
        if self.plan.staggered:
            yield Function(Section.WALK, "wgmma/staggered")
        if self.waits_for_one:
            yield Function(Section.READ, "wgmma/wait_for")

    @property
    def waits_for_one(self) -> bool:
        """True if a consumer has a single part while the other one has two."""
        return self.plan.staggered and len(parts_of(self.plan)) == 2

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return an epilogue that stores the sums of several parts."""
        summed = "the sums of a consumer's parts" if self.plan.staggered else "the sums of all parts"
        return replace(parts, storing=replace(parts.storing, sums="accumulators", summed=summed))

    @property
    def sentences(self) -> Iterator[str]:
        """Sentences about the parts of a tile's columns."""
        yield (
            f"A tile's columns are {counted(len(self.plan.column_parts))} parts, each a power of two wide, "
            "with tiles of B, MMAs and sums of its own."
        )
        if self.plan.staggered:
            yield (
                "The last part is of consumer 0's rows alone, which lie above the other's in one tile, and "
                "below them in the tile beside it: two such tiles are one rectangle."
            )


SIDES: SidesByMma = {"wgmma": (ComposedTiles,)}
