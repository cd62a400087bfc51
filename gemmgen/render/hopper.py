"""What the templates of Hopper kernels need to know: which parts, which argument lists, which comments."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.hopper.roles import release_barriers
from gemmgen.plan.hopper.tiles import rows_name
from gemmgen.render.fit import fit
from gemmgen.render.kernel import KernelView
from gemmgen.render.layouts import HopperLayouts
from gemmgen.render.overview import HopperOverview
from gemmgen.render.wrapper import HopperWrapper


@dataclass(frozen=True)
class LoadedOperand:
    """A or B as one K step loads it."""

    name: str
    multicast: bool
    boxes: tuple[tuple[str, str], ...]
    """Each buffer with the coordinates of what it receives."""


@dataclass(frozen=True)
class HopperView(KernelView):
    """One Hopper plan as the templates see it; every choice of a part is made here."""

    plan: WgmmaPlan

    @cached_property
    def layouts(self) -> HopperLayouts:
        """How tensors lie in memory and registers."""
        return HopperLayouts(self.plan)

    @cached_property
    def overview(self) -> HopperOverview:
        """The kernel in words."""
        return HopperOverview(self.plan)

    @cached_property
    def wrapper(self) -> HopperWrapper:
        """The module's public function."""
        return HopperWrapper(self.plan)

    # --- parts

    @property
    def device_functions(self) -> tuple[str, ...]:
        """The parts of the module's device code, callees first."""
        plan = self.plan
        parts = [] if plan.schedule_kind == "single_tile" else [f"tile_order_{plan.order}"]
        if plan.specialized:
            parts += ["producer", "release"]
        elif not plan.synchronous:
            parts += [f"load_stage_{plan.schedule_kind}", "refill"]
        parts.append("mma_registers" if plan.a_source == "registers" else "mma")
        parts.append(self._multiply)
        if plan.problem.c:
            parts.append("load_c_subtile" if plan.subtiles > 1 else "load_c")
        parts += ["load_vectors"] if plan.problem.vectors else []
        parts += [f"activation_{name}" for name in self.epilogue.activations]
        if plan.problem.transforms:
            parts.append("epilogue")
        parts.append("store_subtiled" if plan.subtiles > 1 else "store_whole")
        if plan.specialized:
            parts.append("consumer_ping_pong" if plan.ping_pong else "consumer")
        return tuple(f"{part}.py.j2" for part in parts)

    @property
    def _multiply(self) -> str:
        plan = self.plan
        if plan.schedule_kind == "single_tile":
            return "multiply_once"
        if plan.synchronous:
            return "multiply_synchronous"
        if plan.promote_k:
            return "multiply_promoted"
        return "multiply_overlapped" if plan.outstanding_mmas else "multiply_in_order"

    @property
    def kernel(self) -> str:
        """The part that holds the kernel."""
        kind = "specialized" if self.plan.specialized else self.plan.schedule_kind
        return f"kernel_{kind}.py.j2"

    # --- loads

    @property
    def ready(self) -> str:
        """The barrier of the stage that is loaded."""
        return "load_ready" if self.plan.synchronous else "ready"

    @property
    def expected_bytes(self) -> str:
        """What one phase of it awaits."""
        a = "a_desc.nbytes_per_cta"
        return f"{f'CONSUMERS * {a}' if self.plan.row_shares > 1 else a} + b_desc.nbytes_per_cta"

    @property
    def loaded_operands(self) -> tuple[LoadedOperand, ...]:
        """A, then B, with the boxes of one stage; an operand that is multicast comes last."""
        plan = self.plan
        k = "0" if plan.schedule_kind == "single_tile" else "k"
        row, column = ("0", "0") if plan.schedule_kind == "single_tile" else ("row", "column")
        ring = "" if plan.synchronous else ".index(stage)"

        def coordinates(major: str, place: str) -> str:
            return f"[{place}, {k}]" if major == "k" else f"[{k}, {place}]"

        a_boxes = tuple(
            (f"{buffer}{ring}", coordinates(plan.problem.a.major, row + self.row_offset(share)))
            for share, buffer in enumerate(plan.per_share("a_smem"))
        )
        b_boxes = ((f"b_smem{ring}", coordinates(plan.problem.b.major, column)),)
        operands = (
            LoadedOperand("a", "a" in plan.multicast, a_boxes),
            LoadedOperand("b", "b" in plan.multicast, b_boxes),
        )
        return tuple(sorted(operands, key=lambda operand: operand.multicast))

    def load(self, operand: LoadedOperand, buffer: str, coordinates: str) -> str:
        """Return the statement that loads a box, in the function of this plan that loads."""
        multicast = ("multicast=True",) if operand.multicast else ()
        arguments = (f"{operand.name}_desc", coordinates, self.ready, buffer, *multicast)
        depth = 3 if self.plan.specialized else 2 if self._multiply == "multiply_synchronous" else 1
        return fit("tma.async_load(", arguments, ")", indent=4 * depth, margin=0)

    @staticmethod
    def row_offset(share: int) -> str:
        """Return the offset of a consumer's rows where its number is known."""
        return ("", " + CONSUMER_TILE_M")[share] if share < 2 else f" + {share} * CONSUMER_TILE_M"

    @property
    def _place(self) -> tuple[str, ...]:
        """Where a load finds its tiles: by the number of the load, or by their place itself."""
        return (*self.order.arguments, "k_steps") if self.plan.persistent else ("row", "column")

    @property
    def load_stage_arguments(self) -> tuple[str, ...]:
        """What starting the loads of one stage takes, without warps of their own for it."""
        return ("a_desc", "b_desc", *self._place, "load", "a_smem", "b_smem", "load_ready")

    @property
    def loads(self) -> str:
        """The loads of all that a program computes."""
        return "loads" if self.plan.persistent else "k_steps"

    @property
    def refill_arguments(self) -> tuple[str, ...]:
        """What loading into a freed stage takes."""
        return (*self.load_stage_arguments, self.loads)

    @property
    def release_barriers(self) -> tuple[str, ...]:
        """The barriers on which a stage is released."""
        return release_barriers(self.plan)

    @property
    def release_arguments(self) -> str:
        """The same as a list."""
        return ", ".join(self.release_barriers)

    @property
    def release_audience(self) -> str:
        """Who is told."""
        if self.plan.multicast:
            return "this CTA's producer, and those that multicast into it,"
        return "the producer"

    def free_stage(self, load: str, stage: str, *, indent: int) -> str:
        """Return the statement that gives a stage back: to the producer, or to the next load."""
        if self.plan.specialized:
            return self.call("release", (*self.release_barriers, "stage"), indent=indent, stage=stage)
        return self.call("refill", self.refill_arguments, indent=indent, load=load)

    # --- the K loop

    @property
    def a_stored_transposed(self) -> bool:
        """Whether A's tile is stored [K, M]."""
        return self.plan.problem.a.major == "mn"

    @property
    def b_stored_transposed(self) -> bool:
        """Whether B's tile is stored [N, K]."""
        return self.plan.problem.b.major == "k"

    @property
    def a_tile(self) -> str:
        """A's tile as [M, K]."""
        return "a_tile" if self.a_stored_transposed else "a_smem"

    @property
    def b_tile(self) -> str:
        """B's tile as [K, N]."""
        return "b_tile" if self.b_stored_transposed else "b_smem"

    @property
    def mma_summary(self) -> str:
        """What starting the MMAs of a K step does."""
        read = "they read B's tile" if self.plan.a_source == "registers" else "they read their tiles"
        sum_of = ", a sum from zero" if self.plan.promote_k else ""
        return f"Start the MMAs of one K step{sum_of}; {read} until they have retired."

    @property
    def use_acc(self) -> str:
        """The argument that makes a sum start at zero, where it has to."""
        return ", use_acc=False" if self.plan.promote_k else ""

    @property
    def zeros(self) -> str:
        """An accumulator of nothing."""
        rows, dtype = rows_name(self.plan), self.plan.problem.accumulator.gluon
        return f"gl.zeros(({rows}, PROGRAM_TILE_N), {dtype}, ACCUMULATOR_LAYOUT)"

    @property
    def multiply_arguments(self) -> tuple[str, ...]:
        """What the K loop of a tile needs."""
        plan = self.plan
        operands = ("a_smem", "b_smem", "load_ready")
        if plan.specialized:
            return (*operands, *self.release_barriers, "first_load", "k_steps")
        if plan.schedule_kind == "single_tile":
            return ("a_desc", "b_desc", *operands)
        if plan.persistent:
            return ("a_desc", "b_desc", *self._place, *operands, "first_load", "loads")
        return ("a_desc", "b_desc", *self._place, *operands, "k_steps")

    def call_multiply(self, indent: int) -> str:
        """Return the call of the K loop."""
        return fit("accumulator = multiply(", self.multiply_arguments, ")", indent=indent)

    @property
    def loads_of_tile(self) -> str:
        """The numbers of a tile's loads."""
        return "range(first_load, first_load + k_steps)" if self.plan.persistent else "range(k_steps)"

    @property
    def later_loads_of_tile(self) -> str:
        """The same without the first."""
        return "range(first_load + 1, first_load + k_steps)" if self.plan.persistent else "range(1, k_steps)"

    @property
    def first_stage(self) -> str:
        """The stage of a tile's first load."""
        return "first_load % STAGES" if self.plan.persistent else "0"

    @property
    def first_phase(self) -> str:
        """The phase in which it arrives."""
        return "first_load // STAGES & 1" if self.plan.persistent else "0"

    # --- the epilogue

    @property
    def store_arguments(self) -> tuple[str, ...]:
        """What converting and storing a tile takes."""
        return ("d_desc", "row", "column", "accumulator", "d_smem", *self.epilogue.store_arguments)

    @property
    def consumer_row(self) -> str:
        """Where a consumer's rows begin."""
        return "row + consumer * CONSUMER_TILE_M" if self.plan.row_shares > 1 else "row"

    def call_store(self, indent: int) -> str:
        """Return the call that stores a tile."""
        items = [self._passed(name, {"row": self.consumer_row}) for name in self.store_arguments]
        return fit("store(", items, ")", indent=indent)

    def epilogue_loads(self, indent: int) -> tuple[str, ...]:
        """Return the statements that start loading what a tile's epilogue needs."""
        return self.epilogue.load_calls(indent, self.consumer_row)

    @property
    def epilogue_buffers_meaning(self) -> str:
        """What there are so many of."""
        each = " per consumer" if self.plan.consumers > 1 else ""
        return f"sub-tiles of {'C and of D' if self.plan.problem.c else 'D'} in flight{each}"

    @property
    def first_sub_tiles(self) -> str:
        """Which store a tile's first sub-tiles wait for, for a comment that has already begun."""
        if not self.plan.persistent:
            return " The first sub-tiles meet none."
        return (
            " For the first sub-tiles that was the\n        # previous tile's, which had the whole K loop "
            "to do so."
        )

    # --- partitions

    @property
    def consumer_tile_comment(self) -> str:
        """How a consumer's rows lie in its program's."""
        plan = self.plan
        return f"  # {plan.cta_consumer_tile_m} rows in each CTA" if plan.cluster_m > 1 else ""

    def define_consumer(self) -> str:
        """Return the head of the consumer's function: parameters without the number of the consumer."""
        parameters = [re.sub(r"_\d+$", "", name) for name in self.plan.consumer_partitions[0].arguments]
        named = ["consumer: gl.constexpr" if name.isdecimal() else name for name in parameters]
        return fit("def consumer_partition(", named, "):")

    def define_producer(self) -> str:
        """Return the head of the producer's function."""
        return fit("def producer_partition(", self.plan.producer_partition.arguments, "):")

    @property
    def k_extent(self) -> str:
        """K, as A's descriptor has it."""
        return "a_desc.shape[1]" if self.plan.problem.a.major == "k" else "a_desc.shape[0]"

    # --- words

    @property
    def consumer_summary(self) -> str:
        """The consumer's role in a sentence."""
        if self.plan.ping_pong:
            return "One of two consumers that take turns: multiply and store every other tile."
        if self.plan.consumers == 1:
            return "The consumer: multiply and store every tile."
        return "One of the consumer warpgroups: multiply and store its rows of every tile."

    @property
    def producer_summary(self) -> str:
        """The producer's role."""
        if not self.plan.multicast:
            return "One warp: keep the ring of A and B tiles full."
        shared = ", and several a ".join(f"tile of {operand.upper()}" for operand in self.plan.multicast)
        text = (
            f"Several CTAs of the cluster share a {shared}: the first of them loads it and multicasts it "
            "into the shared memory of each."
        )
        body = textwrap.fill(text, width=100, initial_indent="    ", subsequent_indent="    ")
        return f"One warp in each CTA: keep the ring of A and B tiles full.\n\n{body}\n    "
