"""The search space of Hopper kernels: its branches, and the kernels of one configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gemmgen.hardware import HOPPER, WGMMA
from gemmgen.plan.rule import altered
from gemmgen.plan.search import Branch, Choices, Space, Values, decided, whole_number
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.tried.branches import (
    block_choices_of,
    branches_without_roles,
    choices_of,
    defaults_of,
    fitted_tiles,
    implied_by,
    is_of_a_wave,
    kinds_of,
    may_reduce_apart,
    may_stagger,
    order_defaults_of,
    staggered_branches,
    swaps_of,
    thirds_of,
    thirds_of_scaled_sums,
    with_blocks,
)
from gemmgen.plan.wgmma.tried.derived import (
    CONSUMER_DERIVED,
    MEMORY_DERIVED,
    ORDER_DERIVED,
    SOURCE_DERIVED,
    TILE_DERIVED,
    deepest_ring,
    derive,
    holds_its_tile,
    lacking_registers,
    steps_of,
)
from gemmgen.plan.wgmma.tried.group_branches import branches_of_groups
from gemmgen.plan.wgmma.tried.values import (
    CHOICES,
    DEFAULTS,
    KINDS,
    LONG_K_DEFAULTS,
    MOST_SUBTILES,
    ORDER_DEFAULTS,
    OTHER_PRODUCER_REGISTERS,
    PARALLEL_CHOICES,
    PRODUCER_REGISTERS,
    STEP_BYTES,
    STORES,
    SWAP_AB_DEFAULTS,
    SWAP_AB_STEP_BYTES,
    TILED_CHOICES,
)
from gemmgen.problem import Request


class WgmmaSpace(Space[WgmmaKernel]):
    """The search space of Hopper kernels."""

    stores = STORES

    def branches(self, request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
        """Yield a branch for each kind of warp specialization, with swap-AB and without."""
        if request.matmul.groups is not None:
            yield from branches_of_groups(request, stated, wanted)
            return
        stated = with_blocks(request, stated)
        for swap_ab in wanted.get("swap_ab") or swaps_of(request, stated, wanted):
            defaults = defaults_of(stated, swap_ab)
            for kind in wanted.get("specialization") or kinds_of({**defaults, **stated}):
                tiled = {**defaults, **stated}["schedule_kind"] == "tiled" and "schedule_kind" not in wanted
                choices = choices_of(request, stated, swap_ab, kind, tiled=tiled)
                order = order_defaults_of(request, {*stated, *wanted}, swap_ab, kind)
                fixed = {name: value for name, value in {**order, **defaults}.items() if name not in choices}
                fixed |= implied_by({"schedule_kind": defaults["schedule_kind"], **stated}, kind)
                fixed["promote_k"] = stated.get("promote_k", fixed["promote_k"])
                blocks = block_choices_of(request, swap_ab)
                fixed = {name: value for name, value in fixed.items() if name not in blocks}
                choices |= {**blocks, **thirds_of(stated, wanted)}
                told = {"swap_ab": swap_ab, "specialization": kind}
                yield Branch(fixed, choices, told)
                if kind == KINDS[0] and not swap_ab:
                    yield from thirds_of_scaled_sums(Branch(fixed, choices, told), request, stated, wanted)
                if may_reduce_apart(request, {*stated, *wanted}, choices):
                    # The order of tiles follows from what the cluster shares, unless something is decided.
                    free = LONG_K_DEFAULTS.keys() if order == LONG_K_DEFAULTS else ()
                    parallel = {name: value for name, value in fixed.items() if name not in free}
                    parallel["reduction"] = "parallel"
                    yield Branch(parallel, {**choices, **PARALLEL_CHOICES}, told)
                if kind == KINDS[0] and not swap_ab and is_of_a_wave(request, {*stated, *wanted}):
                    yield from branches_without_roles(Branch(fixed, choices, told), request, stated, wanted)
                if kind != "none" and not swap_ab:
                    pairs = bool(stated.get("staggered"))
                    for tile, columns in fitted_tiles(request, stated, wanted, kind, pairs=pairs):
                        yield Branch({**fixed, **tile}, {**choices, **columns}, told)
                if kind == KINDS[0] and not swap_ab and may_stagger(request, {*stated, *wanted}):
                    yield from staggered_branches(Branch(fixed, choices, told), request, stated, wanted)

    def bound(self, request: Request, decisions: Values) -> WgmmaKernel:
        """Return the kernel with the deepest ring that is tried: no kernel of these decisions is cheaper."""
        down, along = ("warps_n", "warps_m") if decisions["swap_ab"] else ("warps_m", "warps_n")
        open_decisions = {
            **ORDER_DEFAULTS,
            "stages": deepest_ring(bool(decisions["swap_ab"])),
            "producer_registers": PRODUCER_REGISTERS,
            "consumer_registers": 1,
            "subtile_n": max(1, whole_number(decisions["cta_tile_n"]) // request.matmul.b_blocks),
            "epilogue_buffers": 1,
            along: 1,
            down: 1 if down in decisions else _warps_down(decisions),
        } | dict.fromkeys(("mma_n", "a_source", "a_swizzle_bytes", "b_swizzle_bytes"), 1)
        kernel = decided(WgmmaKernel, request, {**open_decisions, **decisions})
        for derived in (TILE_DERIVED, SOURCE_DERIVED, *((each,) for each in ORDER_DERIVED)):
            kernel = derive(kernel, derived, decisions)
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
        steps = SWAP_AB_STEP_BYTES if kernel.swap_ab else STEP_BYTES
        choices: dict[str, tuple[object, ...]] = {**STORES, **CHOICES, **TILED_CHOICES}
        choices["cta_tile_k"] = steps_of(kernel.problem, steps)
        choices["specialization"] = ("none",) if not kernel.persistent else (*KINDS, "none")
        swap_ab = kernel.swap_ab and kernel.schedule_kind == "tiled"
        defaults = {**ORDER_DEFAULTS, **DEFAULTS, **(SWAP_AB_DEFAULTS if swap_ab else {})}
        choices |= {name: (value,) for name, value in defaults.items()}
        for each in () if swap_ab else ORDER_DERIVED:
            choices[each.name] = (each.value(kernel),)
        if block := with_blocks(kernel.request, {}):
            choices |= {"promote_k": (block["promote_k"],), "cta_tile_k": (block["promote_k"],)}
        return choices


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
