"""The search space of Hopper kernels: its branches, and the kernels of one configuration."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from gemmgen.hardware import HOPPER, WGMMA
from gemmgen.plan.forecast import has_few_tiles, tried_swap_ab
from gemmgen.plan.rule import altered
from gemmgen.plan.search import Branch, Choices, Space, Values, whole_number
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.tried.candidate_table import (
    DEFAULTS,
    EVERY,
    FOLLOWS,
    KERNELS,
    KINDS,
    SWAP_AB,
    SWAP_AB_ALONE,
    VALUES,
    WITHOUT_ROLES,
)
from gemmgen.plan.wgmma.tried.derived import (
    CONSUMER_DERIVED,
    MEMORY_DERIVED,
    ORDER,
    PRODUCER_REGISTERS,
    SOURCE_DERIVED,
    TILE_DERIVED,
    deepest_ring,
    derive,
    holds_its_tile,
    lacking_registers,
    walk_of,
)
from gemmgen.plan.wgmma.tried.problems import decodes, dense, few_rows_a_group, scaled, step_blocks
from gemmgen.plan.wgmma.tried.row import PartialSpec, cascade
from gemmgen.problem import Request, Shape

STORES: Choices = {"subtile_n": (128, 64, 32, 256), "epilogue_buffers": (1, 2)}
"""Ways to store D that are tried: they take shared memory from the ring, and no time that the cost knows."""
MOST_SUBTILES = 64
"""Most sub-tiles of a composed tile for which a number of buffers is looked for: no legal tile has more."""
OTHER_PRODUCER_REGISTERS = (24, 56, 72)
"""Other registers of a producer thread, tried if a role spills, besides an equal share for all."""


class WgmmaSpace(Space[WgmmaKernel]):
    """The search space of Hopper kernels."""

    stores = STORES

    def branches(self, request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
        """Yield the branches of the table of candidates, for each kind of kernel that is tried."""
        for partial in _kinds(PartialSpec(request, stated, wanted)):
            values = cascade(VALUES, partial)
            for row in KERNELS:
                if row.applies(partial):
                    own = partial.of_kind(row.kind)
                    found = {**values, **row.values(own), **cascade(FOLLOWS, own)}
                    defaults = {name: each for name, each in DEFAULTS.items() if name not in found}
                    if all(found.values()):  # no columns may fit the problem
                        yield Branch({**found, **defaults}, own.kind)

    def bound(self, request: Request, decisions: Values) -> WgmmaKernel:
        """Return the kernel with the deepest ring that is tried: no kernel of these decisions is cheaper."""
        down, along = ("warps_n", "warps_m") if decisions["swap_ab"] else ("warps_m", "warps_n")
        open_decisions = {
            "order": ORDER,
            "minor": "m",
            "width": 1,
            "stages": deepest_ring(bool(decisions["swap_ab"])),
            "producer_registers": PRODUCER_REGISTERS,
            "consumer_registers": 1,
            "subtile_n": max(1, whole_number(decisions["cta_tile_n"]) // request.matmul.b_blocks),
            "epilogue_buffers": 1,
            along: 1,
            down: 1 if down in decisions else _warps_down(decisions),
        } | dict.fromkeys(("mma_n", "a_source", "a_swizzle_bytes", "b_swizzle_bytes"), 1)
        kernel = self.decided(WgmmaKernel, request, {**open_decisions, **decisions})
        kernel = derive(derive(kernel, TILE_DERIVED, decisions), SOURCE_DERIVED, decisions)
        walk = walk_of(kernel, decisions.get("order"))
        kernel = altered(kernel, **{name: value for name, value in walk.items() if name not in decisions})
        if not {"warps_m", "warps_n", "mma_n"} & decisions.keys() and _needs_two_warpgroups(kernel):
            wider = altered(kernel, warps_m=2 * kernel.warps_m)
            kernel = min(kernel, wider, key=lacking_registers)
        return kernel

    def stored(
        self,
        bound: WgmmaKernel,
        store: Values,
        decisions: Values,  # noqa: ARG002  what a spec says of them is not in `store`
    ) -> WgmmaKernel:
        """Return that kernel with a way to store D, in so far as its tile has one."""
        return altered(bound, **(_with_subtiles(bound, store) if "subtile_n" in store else store))

    def filled(self, kernel: WgmmaKernel, decided: Collection[str]) -> WgmmaKernel:
        """Return a kernel with what follows from the memory that is left, where that is not decided."""
        filled = derive(derive(kernel, MEMORY_DERIVED, decided), CONSUMER_DERIVED, decided)
        if "shared_memory" in vars(kernel):
            # The buffers need not be listed again: of the decisions made here only the stages change them.
            vars(filled)["smem_bytes"] = kernel.shared_memory.bytes_with("stages", filled.stages)
        return filled

    def redivided(self, kernel: WgmmaKernel, decided: Collection[str]) -> Iterator[WgmmaKernel]:
        """Yield the kernel with other registers of its producer, and consumers with what these leave."""
        if not kernel.specialized or "producer_registers" in decided:
            return
        for producer in dict.fromkeys((*OTHER_PRODUCER_REGISTERS, kernel.register_pool.launch_registers)):
            if producer != kernel.producer_registers:
                yield derive(altered(kernel, producer_registers=producer), CONSUMER_DERIVED, decided)

    def preferred(self, kernel: WgmmaKernel) -> Choices:
        """Return the values that are tried for each decision of a kernel, the best first."""
        partial = PartialSpec(kernel.request, {}, {})
        choices: dict[str, tuple[object, ...]] = {
            **STORES,
            **EVERY.values(partial),
            **WITHOUT_ROLES.values(partial),
        }
        choices["specialization"] = ("cooperative", "ping_pong", "none") if kernel.persistent else ("none",)
        walk = {**walk_of(kernel, kernel.order), "order": walk_of(kernel)["order"]}
        choices |= {name: (value,) for name, value in walk.items()}
        if kernel.swap_ab:
            choices["cta_tile_k"] = SWAP_AB.values(partial)["cta_tile_k"]
            if kernel.schedule_kind == "tiled":
                choices |= {"schedule_kind": ("tiled",), "order": ("row",), "minor": ("n",), "width": (1,)}
        if scaled(partial):
            choices |= {"promote_k": step_blocks(1)(partial), "cta_tile_k": step_blocks(1)(partial)}
        return choices


def _kinds(partial: PartialSpec) -> Iterator[PartialSpec]:
    """Yield a partial spec for each kind of kernel: with or without swap-AB, roles, a program for each tile.

    If a spec states a specialization, or wants some tried, the table decides none.
    """
    for swap_ab in partial.wanted.get("swap_ab") or _swaps(partial):
        # Swap-AB has no roles unless the spec says so, or many rows share a weight that is decoded.
        tiled = swap_ab and dense(partial) and partial.stated.get("specialization", "none") == "none"
        others = ("persistent",) if decodes(partial) and "schedule_kind" not in partial.stated else ()
        for schedule in ("tiled", *others) if tiled else ("persistent",):
            own = partial.of_kind({"swap_ab": swap_ab, "schedule_kind": schedule})
            asked = [{"specialization": each} for each in partial.asked("specialization")]
            for kind in asked or [row.kind for row in KINDS if row.applies(own)]:
                yield own.of_kind(kind)


def _swaps(partial: PartialSpec) -> tuple[object, ...]:
    """Return the values of swap-AB that are tried if the spec does not want some tried.

    Weights that are decoded need swap-AB, and other gates exclude it. A kernel for several problems is tried
    with the values of each of them.
    """
    if "swap_ab" in partial.stated:
        return (partial.stated["swap_ab"],)
    if decodes(partial):
        return (True,)
    if partial.matmul.gated:
        return (False,)
    if not dense(partial):
        return (False, True) if few_rows_a_group(partial) else (False,)
    if not SWAP_AB_ALONE.applies(partial) or not SWAP_AB_ALONE.fits.keys().isdisjoint(partial.wanted):
        return (False,)
    of_each = [_swaps_for(shape, partial.stated) for shape in partial.request.planned_shapes]
    if (True,) in of_each and (False,) not in of_each:
        return (True,)  # without swap-AB a kernel loses most at the fewest rows
    return tuple(dict.fromkeys(itertools.chain.from_iterable(of_each)))


def _swaps_for(shape: Shape, stated: Values) -> tuple[bool, ...]:
    """Return the values of swap-AB that are tried for a problem [M, N, K], beside the stated decisions."""
    if has_few_tiles(*shape) and stated.get("reduction") == "atomic":
        return (False,)  # swap-AB was not measured with atomics
    if has_few_tiles(*shape) and stated.get("schedule_kind") == "tiled":
        return (True,)  # without roles others were no faster
    return tried_swap_ab(*shape)


def _with_subtiles(plan: WgmmaKernel, store: Values) -> Values:
    """Return a way to store D with sub-tiles that the kernel can have, and a number of buffers for them."""
    # Sub-tiles would part the columns of one CTA, or of one warp along N, from another's.
    if plan.reduces_apart:
        whole_tile = {"subtile_n": plan.cta_columns, "epilogue_buffers": 1}
        return {name: whole_tile[name] for name in store}
    whole = plan.cluster_n > 1 or plan.warps_n > 1
    subtile_n = plan.cta_columns if whole else min(whole_number(store["subtile_n"]), plan.widest_subtile_n)
    store = {**store, "subtile_n": subtile_n}
    if not (plan.composed and plan.even_buffers) or store.get("epilogue_buffers", 1) == 1:
        return store
    # No power of two: the fewest buffers beyond one that divide them.
    subtiles = plan.cta_columns // subtile_n
    several = (count for count in range(2, min(subtiles, MOST_SUBTILES) + 1) if subtiles % count == 0)
    return {**store, "epilogue_buffers": next(several, 1)}  # a tile stored whole has one


def _warps_down(decisions: Values) -> int:
    """Return the warps down the instruction: two warpgroups where one consumer has all rows, and enough."""
    warpgroup = HOPPER.warps_per_warpgroup
    along, rows = ("warps_m", "cta_tile_n") if decisions["swap_ab"] else ("warps_n", "cta_tile_m")
    lone = decisions["consumers"] == 1 and whole_number(decisions[rows]) >= 2 * WGMMA.m
    return max(warpgroup, 2 * warpgroup // whole_number(decisions.get(along, 1))) if lone else warpgroup


def _needs_two_warpgroups(plan: WgmmaKernel) -> bool:
    """Return True if a ping-pong consumer of one warpgroup has too few registers for its tile.

    If CTAs along N share a tile, it is stored whole.
    """
    return plan.ping_pong and plan.cluster_n > 1 and not plan.swap_ab and not holds_its_tile(plan)
