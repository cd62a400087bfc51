"""How a stage of the ring is loaded and released, as templates of Hopper modules see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.kernel import OperandLoad
from gemmgen.render.spelling import extent_name
from gemmgen.render.wgmma.lanes import Part, parts_of
from gemmgen.render.wgmma.scale_reads import ScaleReads


@dataclass(frozen=True)
class Stage:
    """The stage of one plan's ring: the tiles of A and B of a K step."""

    plan: WgmmaKernel

    @property
    def early(self) -> OperandLoad:
        """The load of the operand whose first tiles do not wait for the kernel ahead."""
        return self.operands[self.plan.read_early == "b"]

    @property
    def late(self) -> OperandLoad:
        """The load of the other operand."""
        return self.operands[self.plan.read_early != "b"]

    @property
    def bytes_expected(self) -> Iterator[str]:
        """The terms of the bytes of a stage."""
        plan, tensors = self.plan, self.plan.stage.tensors
        if not plan.problem.gathers_a:
            yield self._of_consumers("args.a_desc.nbytes_per_cta")
        for part in parts_of(plan):
            b = f"{part.of('b_desc')}.nbytes_per_cta"
            yield f"{plan.problem.b_blocks} * {b}" if plan.problem.in_blocks else b
        if "a_scale" in tensors:
            yield self._of_consumers("args.a_scale_desc.nbytes_per_cta")
        if "b_scale" in tensors:
            yield "args.b_scale_desc.nbytes_per_cta"

    def _of_consumers(self, size: str) -> str:
        """Return a size as often as there are consumers that share a tile."""
        return f"CONSUMERS * {size}" if self.plan.row_shares > 1 else size

    @property
    def stage(self) -> str:
        """The stage that is loaded."""
        return "ring.stage" if self.plan.specialized else "stage"

    @property
    def operands(self) -> tuple[OperandLoad, ...]:
        """A, then B, as one stage loads them."""
        plan, cache_policy = self.plan, "READ_ONCE" if self.plan.reduces_apart else ""

        def load(operand: str, place: str, shares: int) -> OperandLoad:
            coordinates = self._coordinates(operand, place)
            return OperandLoad(operand, coordinates, operand in plan.multicast, shares, cache_policy)

        return (load("a", row_of(plan, "i"), plan.row_shares), load("b", "tile.column", 1))

    def _coordinates(self, operand: str, place: str) -> str:
        """Return where the tile of a K step begins whose rows of A, or columns of D, begin at `place`."""
        problem = self.plan.problem
        major = (problem.a if operand == "a" else problem.b).major
        if operand == "b" and problem.interleaved:
            place = f"{problem.b_blocks} * {place}"
        k = "0" if self.plan.schedule_kind == "single_tile" else "k"
        if (packed := problem.operand(operand).dtype.elements_per_byte) > 1 and k != "0":
            k = f"k // {packed}"
        if problem.groups and self.plan.access.has_box_axis(operand):
            within = f"{place} - tile.group * args.m" if operand == "a" else place
            if problem.groups.divides_k:
                return f"[k.row, k.ahead, {within}]"
            group = "0" if problem.groups.broadcast == operand else "tile.group"
            return f"[{group}, {within}, {k}]" if major == "k" else f"[{group}, {k}, {within}]"
        if operand == "b" and problem.groups and not problem.groups.divides_k:
            columns = f"{problem.b_blocks} * args.n" if problem.gated else "args.n"
            place = f"tile.group * {columns} + {place}"
        place = self._row_of_a(place) if operand == "a" else place
        return f"[{place}, {k}]" if major == "k" else f"[{k}, {place}]"

    def loads_of(self, load: OperandLoad) -> Iterator[tuple[str, ...]]:
        """Yield the arguments of each load of an operand's tiles: one for each part of a tile's columns."""
        of_b = load.operand == "b"
        for part in parts_of(self.plan) if of_b else (Part(None),):
            coordinates = self._coordinates("b", part.column) if of_b else load.coordinates
            descriptor = part.of(f"{load.operand}_desc")
            tile = self._as_box(
                load.operand, descriptor, f"{part.of(f'{load.operand}_smem')}.index({self.stage})"
            )
            yield (descriptor, coordinates, "ready", tile, *load.options)
        if f"{load.operand}_scale" in self.plan.stage.tensors:
            yield self._load_of_scales(load, f".index({self.stage})")

    def _load_of_scales(self, load: OperandLoad, slot: str) -> tuple[str, ...]:
        """Return the arguments of the load of an operand's scales in a K step."""
        (scales,) = self.plan.stage.payloads_of(f"{load.operand}_scale")
        assert scales.row_k is not None  # a row of scales is of a block of K
        scale, block = f"args.{scales.tensor}", f"k // {extent_name(scales.row_k)}"
        first, groups = ScaleReads(self.plan).column, self.plan.problem.groups
        if load.operand == "a":
            first = self._row_of_a(row_of(self.plan, "i"))
            if groups is not None and groups.apart:
                first = row_of(self.plan, "i", "row_in_group")
                block = f"tile.group * args.k_steps + {block}"
            if self.plan.access.scales_from_any_row:
                at = f"({first})" if self.plan.row_shares > 1 else first
                first = f"{at} // {self.scale_unit} * {self.scale_unit}"
        if groups is not None and self.plan.access.has_box_axis(f"{load.operand}_scale"):
            group = "0" if groups.broadcast == load.operand else "tile.group"
            box = f"as_box({scale}_desc, {scale}_smem{slot})"
            return (f"{scale}_desc", f"[{group}, {block}, {first}]", "ready", box)
        return (f"{scale}_desc", f"[{block}, {first}]", "ready", f"{scale}_smem{slot}")

    @property
    def scale_unit(self) -> int:
        """The scales of A in 16 bytes."""
        scale = self.plan.problem.a.scale
        assert scale is not None  # of kernels that load scales
        return scale.unit

    def _row_of_a(self, row: str) -> str:
        """Return a row of the one A of groups of K, by its row in the D of all groups; others stay."""
        groups = self.plan.problem.groups
        divides_k = groups is not None and groups.divides_k
        return f"{row} - tile.group * args.m" if divides_k else row

    def _as_box(self, operand: str, descriptor: str, tile: str) -> str:
        """Return a tile in shared memory as TMA fills it: with the dimension for groups, if there is one."""
        return f"as_box({descriptor}, {tile})" if self.plan.access.has_box_axis(operand) else tile

    @property
    def loads_of_blocks(self) -> Iterator[tuple[str, ...]]:
        """The arguments of each load of a block of B into its columns of `b_tile`."""
        load, b_major = self.operands[1], self.plan.problem.b.major
        for first, block in (("", "0"), ("args.n + ", "PROGRAM_TILE_N")):
            coordinates = self._coordinates("b", f"{first}tile.column")
            columns = f"{block}, PROGRAM_TILE_N"
            tile = f"b_tile.slice({columns})" if b_major == "k" else f"b_tile.slice({columns}, dim=1)"
            box = self._as_box("b", "args.b_desc", tile)
            yield ("args.b_desc", coordinates, "ready", box, *load.options)

    @property
    def loads_of_consumer(self) -> Iterator[tuple[str, ...]]:
        """The arguments of the loads of a consumer's tile of A, and its scales, in a loop over consumers."""
        load = self.operands[0]
        tile = self._as_box("a", "args.a_desc", "a_tile")
        yield ("args.a_desc", load.coordinates, "ready", tile, *load.options)
        if "a_scale" in self.plan.stage.tensors:
            yield self._load_of_scales(load, f"[i].index({self.stage})")

    @property
    def loads_beyond_group(self) -> bool:
        """True if a tile at the end of a group also loads rows of the next one."""
        problem = self.plan.problem
        if problem.groups is None or problem.groups.divides_k:
            return False
        return not (self.plan.access.has_box_axis("a") and self.plan.access.has_box_axis("b"))

    @property
    def loads_scales(self) -> bool:
        """True if TMA loads scales, through another proxy than threads read them."""
        return "a_scale" in self.plan.stage.tensors

    @property
    def loads_at_once(self) -> Iterator[tuple[str, ...]]:
        """The arguments of the loads of A and of B into tiles that are no ring."""
        for load in self.operands:
            descriptor = f"args.{load.operand}_desc"
            tile = self._as_box(load.operand, descriptor, f"args.{load.operand}_smem")
            yield (descriptor, load.coordinates, "args.load_ready", tile)

    @property
    def is_shared(self) -> bool:
        """True if CTAs of a cluster share tiles: a consumer then releases a stage to several producers."""
        return bool(self.plan.multicast)

    @property
    def release_barriers(self) -> tuple[str, ...]:
        """The barriers on which a stage is released."""
        return tuple(barrier.name for barrier in self.plan.resources.load_empty)


def row_of(plan: WgmmaKernel, consumer: str, tile_row: str = "tile.row") -> str:
    """Return where the rows begin of a consumer that has this number, in a tile that begins at a row."""
    if plan.staggered:
        return f"consumer_row(tile, {consumer})"
    return f"{tile_row} + {consumer} * CONSUMER_TILE_M" if plan.row_shares > 1 else tile_row
