"""A kernel in words, for its module's docstrings; how a module spells what a plan holds, and breaks lines."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from gemmgen.hardware import TCGEN05
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument
from gemmgen.plan.storage import Barrier, Extent, Measure, SharedBuffer
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Operand, Request
from gemmgen.problem.epilogue import described, listed_steps, written
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.walks import walk_of

LINE_LENGTH = 110  # of pyproject.toml, section [tool.ruff]
MEASURES: dict[Measure, str] = {
    "stages": "STAGES",
    "epilogue_buffers": "EPILOGUE_BUFFERS",
    "consumers": "CONSUMERS",
    "accumulators": "ACCUMULATORS",
    "clc_responses": "CLC_RESPONSES",
    "tile_m": "PROGRAM_TILE_M",
    "tile_n": "PROGRAM_TILE_N",
    "tile_k": "PROGRAM_TILE_K",
    "packed_tile_k": "PACKED_TILE_K",
    "consumer_tile_m": "CONSUMER_TILE_M",
    "part_n_0": "PART_N_0",
    "part_n_1": "PART_N_1",
    "part_n_2": "PART_N_2",
    "vector_n": "VECTOR_N",
    "subtile_n": "SUBTILE_N",
    "a_scale_blocks": "A_SCALE_BLOCKS",
    "b_scale_blocks": "B_SCALE_BLOCKS",
    "scale_blocks_k": "SCALE_BLOCKS_K",
}
"""The constant that holds each measure."""
RING_INDICES: dict[Measure, str] = {
    "stages": "stage",
    "epilogue_buffers": "buffer",
    "consumers": "consumer",
    "accumulators": "slot",
    "clc_responses": "slot",
}
"""The loop variable over the slots of each kind of ring."""


def extent_name(extent: Extent) -> str:
    """Return the constant that holds an extent, or the number that the hardware fixes."""
    return MEASURES[extent.measure] if extent.measure else str(extent.size)


def layout_name(buffer: SharedBuffer, buffers: Sequence[SharedBuffer]) -> str:
    """Return the constant that holds a buffer's layout: parts of B that lie alike have one."""
    whole = next(other for other in buffers if other.tensor == buffer.tensor)
    alike = whole if whole.swizzle_bytes == buffer.swizzle_bytes else buffer
    return f"{alike.operand.upper()}_LAYOUT"


def argument_name(argument: Argument) -> str:
    """Return an argument's name in the kernel: of its descriptor, or of its address."""
    return f"{argument.name}_{'ptr' if argument.kind in ('scalar', 'workspace') else 'desc'}"


def arrivals_name(barrier: Barrier) -> str:
    """Return the constant that holds the arrivals of one CTA on a barrier, or their number."""
    return (
        {"consumers": "CONSUMERS", "roles": "ROLES"}[barrier.counts] if barrier.counts else str(barrier.count)
    )


def fit(head: str, items: Sequence[str], tail: str, *, indent: int = 0, margin: int | None = None) -> str:
    """Return ``head`` + comma-separated items + ``tail`` in lines as the project's formatter breaks them.

    ``head`` ends with the opening bracket and ``tail`` begins with the closing one. The text starts behind
    `indent` columns that the caller has already written. An item may have lines of its own, which are
    indented by one level more than `indent`. Further lines are indented by `margin` columns, as many as
    `indent` if left out: none where a template indents the whole block.
    """
    margin = indent if margin is None else margin
    outer, inner = " " * margin, " " * (margin + 4)
    joined = ", ".join(items)
    if "\n" not in joined and indent + len(head + joined + tail) <= LINE_LENGTH:
        return head + joined + tail
    display = head[-1] in "[{" or head == "("  # of a list, dict or tuple: one item a line, once it is broken
    fits = "\n" not in joined and indent + 4 + len(joined) <= LINE_LENGTH
    if len(items) == 1 or (fits and not display):
        return f"{head}\n{inner}{joined}\n{outer}{tail}"
    lines = "".join(f"{inner}{item},\n" for item in items)
    return f"{head}\n{lines}{outer}{tail}"


def fit_sum(head: str, first: str, terms: Sequence[str], *, indent: int) -> str:
    """Return a call of two arguments, the second a sum, in lines as the formatter breaks them (`fit`)."""
    line = fit(head, (first, " + ".join(terms)), ")", indent=indent)
    if all(len(part) <= LINE_LENGTH for part in line.splitlines()):
        return line
    margin = " " * (indent + 4)
    return fit(head, (first, f"\n{margin}+ ".join(terms)), ")", indent=indent)


COUNTS = {2: "two", 3: "three", 4: "four"}


def counted(count: int) -> str:
    """Return a small number in words."""
    return COUNTS.get(count, str(count))


def formula(request: Request, a: str, b: str, c: str) -> str:
    """Return what D is in terms of these operands."""
    epilogue = request.matmul.epilogue
    if not epilogue.is_chain:
        return f"epilogue({a} @ {b})"
    factor = {1.0: "", -1.0: "-"}.get(epilogue.alpha, f"{epilogue.alpha:g} * ")
    text = f"{factor}{a} @ {b}"
    if epilogue.beta and not request.lists_c:
        sign, factor = ("-" if epilogue.beta < 0 else "+"), abs(epilogue.beta)
        text += f" {sign} {'' if factor == 1 else f'{factor:g} * '}{c}"
    return f"epilogue({text})" if listed_steps(epilogue, lists_c=request.lists_c) else text


def epilogue_sentence(request: Request) -> str:
    """Return what the formula calls the epilogue, as a sentence behind a space; nothing where it has none."""
    epilogue = request.matmul.epilogue
    if not epilogue.is_chain:
        return f" The epilogue, of the sums acc: {written(epilogue.value)}."
    steps = listed_steps(epilogue, lists_c=request.lists_c)
    order = ", in order" if len(steps) > 1 else ""
    return f" The epilogue{order}: {', '.join(map(described, steps))}." if steps else ""


@dataclass(frozen=True)
class KernelOverview(ABC):
    """What a reader of any kernel should know before the code."""

    plan: Kernel

    @property
    @abstractmethod
    def generation(self) -> str:
        """The GPUs that the kernel is for."""

    @property
    @abstractmethod
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""

    @property
    @abstractmethod
    def resources(self) -> tuple[tuple[str, str], ...]:
        """What the kernel takes, name by name."""

    @property
    def _threads(self) -> str:
        """The threads of a CTA, with the idle warps that Triton adds to a partial warpgroup of workers."""
        plan = self.plan
        pool = plan.register_pool
        warps = pool.default_warps + sum(count for count, _ in pool.workers)
        idle = pool.total_warps - warps
        rest = f": {warps} warps, and {idle} that fill the last warpgroup" if idle else ""
        return f"{plan.threads} per CTA{rest}"

    @property
    def factors(self) -> tuple[str, str]:
        """The factors of the product with their shapes."""
        return "A[M, K]", "B[K, N]"

    @property
    def short_factors(self) -> tuple[str, str]:
        """The factors of the product."""
        return "A", "B"

    @property
    def more_inputs(self) -> tuple[str, ...]:
        """What else has a descriptor, behind B."""
        return ()

    @property
    def each_part(self) -> str:
        """How many descriptors B has, if it is not one."""
        return " for each part" if self.plan.composed else ""

    @abstractmethod
    def describe(self) -> str:
        """Say how the kernel goes about it."""

    @property
    def walk(self) -> str:
        """How many programs walk over tiles of D, as a sentence."""
        size, count = self.plan.cluster_size, self.plan.occupancy
        place = "SM" if size == 1 else f"cluster of {size} SMs"
        subject = "One program" if count == 1 else f"{counted(count).capitalize()} programs"
        return f"{subject} per {place} walk{'s' * (count == 1)} over {self.walked}."

    @property
    def walked(self) -> str:
        """The work items that programs walk over, in words."""
        return walk_of(self.plan).walked.format(splits=self.plan.splits_per_tile)

    @property
    def structure(self) -> str:
        """How the kernel goes about it, in one paragraph."""
        return textwrap.fill(self.describe(), width=105)

    @property
    def formula_paragraph(self) -> str:
        """Formula, place and types, wrapped."""
        architecture = self.plan.architecture.name
        product = formula(self.plan.request, *self.factors, "C[M, N]")
        text = f"D[M, N] = {product} on {self.generation} ({architecture}): {self.dtypes}."
        return textwrap.fill(text + epilogue_sentence(self.plan.request), width=105)

    @property
    def kernel(self) -> str:
        """The kernel's docstring, with the quotes that end it."""
        problem = self.plan.problem
        stored = [
            "A [M, K]" if problem.a.major == "k" else "A stored as [K, M]",
            ("B stored as [N, K]" if problem.b.major == "k" else "B [K, N]") + self.each_part,
            *self.more_inputs,
            *(["C [M, N]"] if problem.c else []),
            *(f"{name} [{OPERATIONS[name].along.upper()}]" for name in problem.vectors),
        ]
        product = f"D = {formula(self.plan.request, *self.short_factors, 'C')}"
        descriptors = f"the descriptors are over {', '.join(stored)}, and D [M, N]."
        if self.plan.reduces_apart:
            product = "Multiply parts of K, and leave the sums of each for the kernel that adds them up"
            descriptors = f"the descriptors are over {' and '.join(stored[:2])}."
        if len(line := f'    """{product}; {descriptors}"""') <= 110:
            return line
        body = textwrap.fill(
            descriptors[0].upper() + descriptors[1:],
            width=104,
            initial_indent="    ",
            subsequent_indent="    ",
        )
        return f'    """{product}.\n\n{body}\n    """'


@dataclass(frozen=True)
class HopperOverview(KernelOverview):
    """A Hopper kernel in words."""

    plan: WgmmaKernel

    @property
    def generation(self) -> str:
        """The GPUs that the kernel is for."""
        return "Hopper"

    @property
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""
        problem = self.plan.problem
        a, b, d = problem.a.dtype.name, problem.b.dtype.name, problem.d.name
        inputs = f"A and B {a}" if a == b else f"A {a}, B {b}"
        inputs += f" ({memory} in memory)" if (memory := problem.a.dtype.in_memory) else ""
        c = f", C {problem.c.name}" if problem.c else ""
        promoted = f" after every {self.plan.promote_k} of K" if self.plan.promote_k else ""
        return f"{inputs}{c}, D {d}, accumulated in {problem.accumulator.name}{promoted}"

    @property
    def resources(self) -> tuple[tuple[str, str], ...]:
        """What the kernel takes, name by name."""
        plan = self.plan
        ring = "" if plan.synchronous else f", in {plan.stages} stages"
        together = plan.occupancy > 1 and plan.schedule_kind != "single_tile"  # which runs one CTA in all
        shared = f", {plan.occupancy} CTAs per SM" if together else ""
        columns = f"({' + '.join(map(str, plan.column_parts))})" if plan.composed else plan.cta_tile_n
        if plan.staggered:
            widest = plan.cta_widest_n
            columns = (
                f"{plan.cta_tile_n} (of one consumer {widest}, of the other {widest - 2 * plan.stagger_n})"
            )
        return (
            ("CTA tile", f"{plan.cta_tile_m} x {columns}, {plan.cta_tile_k} of K per step{ring}"),
            ("cluster", f"{plan.cluster_m} x {plan.cluster_n} CTAs"),
            ("instruction", f"wgmma {', '.join(plan.mma_names)}"),
            ("shared memory", f"{plan.smem_bytes:,} bytes per CTA{shared}"),
            ("threads", self._threads),
            ("registers", self._registers),
        )

    @property
    def _registers(self) -> str:
        """Registers per thread, role by role."""
        plan = self.plan
        held = "accumulator and partial sum" if plan.promote_k else "the accumulator"
        held = f"({plan.accumulator_registers} hold {held})"
        if not plan.specialized:
            return f"at most {plan.consumer_registers} per thread {held}"
        producer = f"{plan.producer_registers} per producer thread"
        return f"{plan.consumer_registers} per consumer thread {held}, {producer}"

    def describe(self) -> str:
        """Say how the kernel goes about it."""
        text = self._specialized() if self.plan.specialized else self._unspecialized()
        return text + self._last_wave + self._parts + self._exchange + self._early

    @property
    def _last_wave(self) -> str:
        """How the tiles that fill no wave are divided, where they are."""
        if not self.plan.divides_last_wave:
            return ""
        return (
            " The tiles that fill no wave are divided by K steps over all programs (stream-K): of a tile "
            f"that several have, {self._reduction}"
        )

    @property
    def _parts(self) -> str:
        """How the columns of a composed tile are divided."""
        if not self.plan.composed:
            return ""
        number = counted(len(self.plan.column_parts))
        parts = (
            f" A tile's columns are {number} parts, each a power of two wide, with tiles of B, MMAs and sums "
            "of its own."
        )
        if not self.plan.staggered:
            return parts
        return (
            f"{parts} The last part is of consumer 0's rows alone, which lie above the other's in one tile, "
            "and below them in the tile beside it: two such tiles are one rectangle."
        )

    @property
    def _exchange(self) -> str:
        """Which operand is the instruction's first one, where that is not A."""
        if not self.plan.swap_ab:
            return ""
        return " The rows of B are wgmma's rows and those of A its columns: its sums are D's tile transposed."

    @property
    def _early(self) -> str:
        """What a kernel does that starts before the one ahead of it has ended."""
        if not self.plan.dependent:
            return ""
        if not (read := self.plan.read_early):
            return (
                " It starts while the kernel ahead of it may still run, and reads and writes after its end."
            )
        early = read.upper()
        return (
            f" It starts while the kernel ahead of it may still run, loads its first tiles of {early}, and "
            "waits for that one's end before all else."
        )

    @property
    def _programs(self) -> str:
        """How many programs there are, as a sentence."""
        if self.plan.splits == 1:
            return "One program per tile of D."
        return (
            f"{counted(self.plan.splits).capitalize()} programs per tile of D divide its K: {self._reduction}"
        )

    @property
    def _reduction(self) -> str:
        """How parts of K come together, as the end of a sentence."""
        if self.plan.reduction == "ordered":
            return "each leaves its sums in memory, and the last to come adds them up in order and stores D."
        if self.plan.reduces_apart:
            return "each leaves its sums in memory, and a second kernel adds them up in order and stores D."
        return "each adds its sums to those in memory as it comes, and the last to come stores D."

    @property
    def _operands(self) -> str:
        """Where wgmma takes its operands from, where that is not shared memory alone."""
        return " with A from registers" if self.plan.a_source == "registers" else ""

    def _unspecialized(self) -> str:
        plan = self.plan
        its = "Its" if plan.splits == 1 else "Each one's"
        warps, wgmma = f"{its} {plan.consumer_warps} warps", f"wgmma{self._operands}"
        if plan.schedule_kind == "single_tile":
            loads = "load all of A and B through TMA"
            return (
                f"One program computes the single tile of D. {warps} {loads}, multiply them with {wgmma}, "
                "and store D through TMA."
            )
        if plan.synchronous:
            others = ""
            if plan.occupancy > 1:
                number = f"{counted(plan.occupancy - 1)} " * (plan.occupancy > 2)
                programs = f"{number}other program{'s' * (plan.occupancy > 2)}"
                others = f" Meanwhile the SM's {programs} can multiply."
            return (
                f"{self._programs} {warps} load a K step of A and B through TMA, wait for it, "
                f"multiply it with {wgmma}, and only then load the next one.{others}"
            )
        ring = f"{warps} multiply K steps with {wgmma} out of a ring of {plan.stages} stages that TMA fills"
        flight = "later steps load while one is multiplied"
        if plan.outstanding_mmas:
            flight = "later steps load, and one MMA is in flight while the next is issued"
        if plan.persistent:
            return (
                f"{self.walk} {ring}: {flight}. The loads run on across tiles, so that the next tile is "
                "loading while D is stored."
            )
        return f"{self._programs} {ring}: {flight}."

    def _specialized(self) -> str:
        plan = self.plan
        loads = "In each CTA one producer warp loads tiles of A and B through TMA into a ring of stages"
        if plan.multicast:
            shared = " or ".join(operand.upper() for operand in plan.multicast)
            loads += f"; a tile of {shared} is loaded once and multicast to the CTAs that share it"
        return f"{self.walk} {loads}. {self._work()}"

    def _work(self) -> str:
        plan = self.plan
        if plan.ping_pong:
            return (
                f"Two consumers take turns with whole tiles: one multiplies with wgmma{self._operands} while "
                "the other stores D through TMA."
            )
        if plan.splits > 1:
            return f"{self._parts_work()} {self._reduction[0].upper()}{self._reduction[1:]}"
        meanwhile = "D through TMA while the next tile is already loading."
        if plan.consumers == 1:
            consumer = f"One consumer of {plan.consumer_warps} warps"
            return f"{consumer} multiplies with wgmma{self._operands} and stores {meanwhile}"
        consumers = counted(plan.consumers).capitalize()
        return f"{consumers} consumer warpgroups multiply with wgmma{self._operands} and store {meanwhile}"

    def _parts_work(self) -> str:
        """What consumers do with parts of tiles."""
        plan = self.plan
        wgmma = f"with wgmma{self._operands} while the next part is already loading."
        if plan.consumers == 1:
            return f"One consumer of {plan.consumer_warps} warps multiplies {wgmma}"
        return f"{counted(plan.consumers).capitalize()} consumer warpgroups multiply {wgmma}"


def _vector(name: str) -> str:
    """Return a row or column operand in words: ``a column bias``."""
    return f"a {name.replace('_', ' ')}"


@dataclass(frozen=True)
class BlackwellOverview(KernelOverview):
    """A Blackwell kernel in words."""

    plan: Tcgen05Kernel

    @property
    def generation(self) -> str:
        """The GPUs that the kernel is for."""
        return "Blackwell"

    @property
    def factors(self) -> tuple[str, str]:
        """The factors of the product with their shapes."""
        if not self.plan.block_scaled:
            return "A[M, K]", "B[K, N]"
        return "(A[M, K] * a_scale)", "(B[K, N] * b_scale)"

    @property
    def short_factors(self) -> tuple[str, str]:
        """The factors of the product."""
        return ("(A * a_scale)", "(B * b_scale)") if self.plan.block_scaled else ("A", "B")

    @property
    def more_inputs(self) -> tuple[str, ...]:
        """What else has a descriptor, behind B."""
        return ("their scales as `pack_scales` lays them out",) if self.plan.block_scaled else ()

    @property
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""
        problem = self.plan.problem
        a, b = self._typed(problem.a), self._typed(problem.b)
        inputs = f"A and B {a}" if a == b else f"A {a}, B {b}"
        c = f", C {problem.c.name}" if problem.c else ""
        return f"{inputs}{c}, D {problem.d.name}, accumulated in {problem.accumulator.name}"

    @staticmethod
    def _typed(operand: Operand) -> str:
        name = operand.dtype.name
        name += f" ({operand.dtype.in_memory} in memory)" if operand.dtype.in_memory else ""
        if not (scale := operand.scale):
            return name
        return (
            f"{scale.format.name} ({name} with a scale of {scale.dtype.name} for every {scale.vector} of K)"
        )

    @property
    def resources(self) -> tuple[tuple[str, str], ...]:
        """What the kernel takes, name by name."""
        plan = self.plan
        m, n, k = plan.mma_shape
        columns = f"{plan.tmem_columns} of {TCGEN05.tmem_columns} columns"
        accumulators = f"{plan.accumulators} accumulator{'s' * (plan.accumulators > 1)}"
        scales = " and the scales of a K step" if plan.block_scaled else ""
        pool, ring = plan.register_pool, f", in {plan.stages} stages"
        return (
            ("CTA tile", f"{plan.cta_tile_m} x {plan.cta_tile_n}, {plan.cta_tile_k} of K per step{ring}"),
            ("cluster", f"{plan.cluster_m} x {plan.cluster_n} CTAs"),
            ("instruction", f"tcgen05.mma {plan.mma_kind}, {m} x {n} x {k}, of {self._group}"),
            ("tensor memory", f"{columns}, for {accumulators}{scales}"),
            ("shared memory", f"{plan.smem_bytes:,} bytes per CTA"),
            ("threads", self._threads),
            ("registers", f"{pool.default_registers} per epilogue thread, {plan.worker_registers} per other"),
        )

    @property
    def _place(self) -> str:
        """What a program runs on."""
        size = self.plan.cluster_size
        return "an SM" if size == 1 else f"a cluster of {size} SMs"

    @property
    def _group(self) -> str:
        return "two CTAs" if self.plan.paired else "one CTA"

    def describe(self) -> str:
        """Say how the kernel goes about it."""
        plan = self.plan
        if plan.launch_control:
            text = (
                f"There is a program for each tile of D, on {self._place}. A program that has computed its "
                "tile takes over the tile of one that has not started, as cluster launch control assigns it: "
                "a warp asks for the next tile while this one is computed."
            )
        else:
            text = self.walk
        what = "tiles of A and B and their scales" if plan.block_scaled else "tiles of A and B"
        text += f" In each CTA one warp loads {what} through TMA into a ring of stages."
        if plan.paired:
            text += (
                " Pairs of CTAs multiply together: each holds its rows of A and half of B's columns, and the "
                "MMA warp of the first one issues for both. Each holds the sums of its rows in tensor memory."
            )
        else:
            text += " Another issues the MMAs, whose sums are in tensor memory."
        what = [*(["a tile of C"] if plan.problem.c else []), *map(_vector, plan.problem.vectors)]
        *most, last = what or [""]
        loaded = f"{', '.join(most)} and {last}" if most else last
        loaded = f" load {loaded} through TMA while A and B are multiplied," if what else ""
        stored = f"{'compute D of them and store it' if what else 'convert them and store D'} through TMA"
        meanwhile = " while the next tile is multiplied" if plan.accumulators > 1 else ""
        return f"{text} Four warps{loaded} read the sums from tensor memory, {stored}{meanwhile}."
