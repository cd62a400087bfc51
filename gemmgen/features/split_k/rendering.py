"""The side of split-K in rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from gemmgen.features.split_k.address_reader import AddressReader
from gemmgen.features.split_k.reduction import ReductionView
from gemmgen.features.split_k.splits_together import splits_at_once
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.side import Rendering, SidesByMma


@dataclass(frozen=True)
class SplitK(Rendering):
    """The sums that programs of a Hopper plan leave each other."""

    plan: WgmmaKernel
    name = "reduction"

    @property
    def applies(self) -> bool:
        """True if several programs share a tile's K."""
        return self.plan.splits > 1

    @cached_property
    def kernel(self) -> ReductionView:
        """The kernel that adds up the sums of parts of K, if there is one."""
        return ReductionView(self.plan)

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return the epilogue of a second kernel, which reads operands by address, if one stores D."""
        if not self.plan.reduces_apart:
            return parts
        loads = replace(parts.loads, has_c=False, vectors=())
        readers = (AddressReader(self.plan), *parts.readers)
        storing = replace(parts.storing, by="second_kernel")
        return replace(parts, loads=loads, readers=readers, storing=storing)

    @property
    def constants(self) -> Iterator[Constant]:
        """The parts of K, and their sums."""
        plan = self.plan
        each = "that programs take one by one" if plan.specialized else "each a program's"
        yield Constant(Place.WORK, "SPLITS", plan.splits, f"parts of K, {each}")
        own = "of a tile's rows that one consumer has" if plan.row_shares > 1 else "of a tile"
        yield Constant(Place.WORK, "SUMS", plan.consumer_tile_m * plan.program_tile_n, own)
        if self.column_ctas > 1:
            meaning = "that divide the columns of an accumulator"
            yield Constant(Place.WORK, "COLUMN_CTAS", self.column_ctas, meaning)
        if plan.reduces_apart:
            yield from self.kernel.constants
        if plan.reduction == "ordered" and not self.reads_all_at_once:
            meaning = "of which the sums are read together"
            yield Constant(Place.WORK, "SPLITS_AT_ONCE", splits_at_once(plan), meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The functions that leave and add up sums, and the functions of the host that make their memory."""
        yield Function(Section.SUMS, "wgmma/register_order")
        if not self.apart:
            yield Function(Section.SUMS, "wgmma/accumulator_order")
        yield Function(Section.SUMS, "wgmma/sum_addresses")
        if self.apart:
            yield Function(Section.SUMS, "wgmma/leave_sums")
            yield Function(Section.ARGUMENTS_AFTERWARDS, "wgmma/reduction_args")
            yield Function(Section.AFTERWARDS, "wgmma/piece_origin")
            yield Function(Section.AFTERWARDS, "wgmma/reduction_kernel")
            yield Function(Section.LAUNCH, "wrapper/sums", passed=("make_sums", "count_sums"))
        else:
            yield Function(Section.SUMS, f"wgmma/reduction_{self.plan.reduction}")
            yield Function(Section.LAUNCH, "wrapper/workspace", passed=("make_workspace",))

    @property
    def imported(self) -> Iterator[tuple[str, str]]:
        """The policy by which L2 keeps sums, and what lets a second kernel follow the first one."""
        if self.plan.reduces_apart:
            yield from (("ampere", name) for name in ("CachePolicy", "FractionalEvictionPolicy"))
            yield from (("cuda", name) for name in ("gdc_launch_dependents", "gdc_wait"))

    @property
    def docs(self) -> dict[str, str]:
        """The words about the memory of sums and counters."""
        return {"workspace": "from `make_workspace`, for one call at a time; if None, the stream's"}

    # --- expressions of templates

    @property
    def column_ctas(self) -> int:
        """The CTAs of a cluster that divide an accumulator's columns."""
        return self.kernel.column_ctas

    @property
    def reads_all_at_once(self) -> bool:
        """True if the sums of all splits are read together."""
        return splits_at_once(self.plan) == self.plan.splits

    @property
    def ends_amid_group(self) -> bool:
        """True if the last group of splits that are read together has fewer splits than the others."""
        return self.plan.splits % splits_at_once(self.plan) != 0

    @property
    def apart(self) -> bool:
        """True if programs leave the sums of all splits to a second kernel."""
        return self.plan.reduces_apart

    @property
    def place(self) -> str:
        """The number of a split among the splits of all tiles."""
        return f"{self._tile} * SPLITS + {self._split}"

    @property
    def place_of_sum(self) -> str:
        """The place of a consumer's complete sums of a tile."""
        return self.of_consumer(self._tile)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `is_last` for a split; an atomic reduction does not tell splits apart."""
        splits = (self._split,) if self.plan.reduction == "ordered" else ()
        return ("args", self.place_of_sum, *splits, "accumulator")

    def of_consumer(self, number: str) -> str:
        """Return the number of a consumer's share of a numbered item; a lone consumer has the whole item."""
        return f"{number} * CONSUMERS + consumer" if self.plan.consumers > 1 else number

    @property
    def _tile(self) -> str:
        """The number of a split's tile."""
        return "tiles.tile(item)" if self.plan.persistent else "tiles.tile"

    @property
    def _split(self) -> str:
        """The number of a split in its tile."""
        return "tiles.split(item)" if self.plan.persistent else "tiles.split"


SIDES: SidesByMma = {"wgmma": (SplitK,)}
