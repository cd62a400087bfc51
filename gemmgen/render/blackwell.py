"""What the templates of Blackwell kernels need to know of a plan in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.blackwell import Tcgen05Plan
from gemmgen.plan.blackwell.tiles import ANSWERS
from gemmgen.plan.problem import Operand
from gemmgen.plan.storage import k_extent_name
from gemmgen.render.fit import fit
from gemmgen.render.kernel import KernelView
from gemmgen.render.layouts import KernelLayouts
from gemmgen.render.overview import KernelOverview
from gemmgen.render.wrapper import KernelWrapper
from gemmgen.target import SCALE_ROWS, TCGEN05


@dataclass(frozen=True)
class BlackwellView(KernelView):
    """One Blackwell plan as the templates see it; every choice of a part is made here."""

    plan: Tcgen05Plan

    @cached_property
    def layouts(self) -> BlackwellLayouts:
        """How tensors lie in memory."""
        return BlackwellLayouts(self.plan)

    @cached_property
    def overview(self) -> BlackwellOverview:
        """The kernel in words."""
        return BlackwellOverview(self.plan)

    @cached_property
    def wrapper(self) -> BlackwellWrapper:
        """The module's public function."""
        return BlackwellWrapper(self.plan)

    # --- parts

    @property
    def device_functions(self) -> tuple[str, ...]:
        """The parts of the module's device code, callees first."""
        plan = self.plan
        parts = [f"tile_order_{plan.order}"]
        parts += ["next_tile", "scheduler_partition"] if plan.launch_control else []
        parts.append("load_partition")
        parts += ["as_matrix"] if plan.block_scaled else []
        parts.append("mma_partition")
        parts += [f"activation_{name}" for name in self.epilogue.activations]
        parts += ["epilogue"] if plan.problem.transforms else []
        parts.append("drain_subtiled" if plan.subtiles > 1 else "drain_whole")
        parts.append("epilogue_partition")
        return tuple(f"{part}.py.j2" for part in parts)

    @property
    def imports(self) -> tuple[str, ...]:
        """What the module needs of Gluon's Blackwell language."""
        plan = self.plan
        scaled = ("TensorMemoryScalesLayout", "tcgen05_copy", "tcgen05_mma_scaled")
        names = ["TensorMemoryLayout", "allocate_tensor_memory", "fence_async_shared", "mbarrier"]
        names += ["tcgen05_commit", "tma", *(scaled if plan.block_scaled else ("tcgen05_mma",))]
        names += ["clc"] if plan.launch_control else []
        return tuple(sorted(names, key=lambda name: (name[0].islower(), name)))

    @property
    def constants(self) -> Iterator[tuple[str, int, str]]:
        """The name, value and meaning of each constant that other kernels do not have."""
        plan, problem = self.plan, self.plan.problem
        extents = (k_extent_name(problem.a), k_extent_name(problem.b))
        if "PROGRAM_TILE_K" in extents:
            yield "PROGRAM_TILE_K", plan.cta_tile_k, ""
        if "PACKED_TILE_K" in extents:
            yield "PACKED_TILE_K", plan.cta_tile_k // 2, f"bytes of {plan.cta_tile_k} elements of 4 bits"
        if plan.block_scaled:
            yield "SCALE_ROWS", SCALE_ROWS, "rows whose scales lie together, in blocks of 4 for each row"
            yield "A_SCALE_BLOCKS", plan.program_tile_m // SCALE_ROWS, "of A's rows"
            yield "B_SCALE_BLOCKS", plan.program_tile_n // SCALE_ROWS, "of B's columns"
            yield "SCALE_BLOCKS_K", plan.scale_groups(problem.a), "of a K step"
        yield "STAGES", plan.stages, "K steps in flight"
        if plan.accumulators > 1:
            yield "ACCUMULATORS", plan.accumulators, "tiles of sums: one is stored while the next is summed"
        if plan.launch_control:
            yield "ANSWERS", ANSWERS, "of launch control: one is read while the next is asked for"
            yield "ROLES", len(plan.partitions), "partitions, all of which read every answer"

    # --- tiles

    @property
    def tiles_begin(self) -> str:
        """The part that begins a role's loop over tiles, whose body follows."""
        return f"tiles_begin_{self.plan.schedule_kind}.py.j2"

    @property
    def tiles_end(self) -> str:
        """The part that ends it."""
        return f"tiles_end_{self.plan.schedule_kind}.py.j2"

    @property
    def k_extent(self) -> str:
        """K as A's descriptor has it."""
        return "a_desc.shape[1]" if self.plan.problem.a.major == "k" else "a_desc.shape[0]"

    @property
    def k_extent_name(self) -> str:
        """The constant that holds as much of it as a K step."""
        return k_extent_name(self.plan.problem.a)

    # --- loads

    @property
    def k_coordinates(self) -> tuple[tuple[str, str], ...]:
        """Where a K step begins, each coordinate with the constant that it is a multiple of."""
        names = {k_extent_name(operand) for operand in (self.plan.problem.a, self.plan.problem.b)}
        known = (("k", "PROGRAM_TILE_K"), ("packed_k", "PACKED_TILE_K"))
        scales = (("scale_block", "SCALE_BLOCKS_K"),) if self.plan.block_scaled else ()
        return (*((name, extent) for name, extent in known if extent in names), *scales)

    @property
    def expected_bytes(self) -> str:
        """What one phase of a stage's barrier awaits."""
        names = ("a", "b", *self.wrapper.scales)
        items = [f"{name}_desc.nbytes_per_cta" for name in names]
        line = fit("mbarrier.expect(", ("ready", " + ".join(items)), ")", indent=12, margin=0)
        if "\n" not in line or len(items) == 2:
            return line
        joined = "\n        + ".join(items)
        return f"mbarrier.expect(\n    ready,\n    {joined.replace('        +', '    +')},\n)"

    @property
    def loads(self) -> Iterator[str]:
        """The statements that load a stage."""
        problem = self.plan.problem
        for name, operand, place in (("a", problem.a, "row"), ("b", problem.b, "column")):
            k = "k" if k_extent_name(operand) == "PROGRAM_TILE_K" else "packed_k"
            yield self._load(name, f"[{place}, {k}]" if operand.major == "k" else f"[{k}, {place}]")
        for name in self.wrapper.scales:
            place = "row" if name.startswith("a") else "column"
            yield self._load(name, f"[0, {place} // SCALE_ROWS, scale_block, 0, 0]")

    def _load(self, name: str, coordinates: str) -> str:
        multicast = ("multicast=True",) if name in self.plan.multicast else ()
        arguments = (f"{name}_desc", coordinates, "ready", f"{name}_smem.index(stage)", *multicast)
        return fit("tma.async_load(", arguments, ")", indent=12, margin=0)

    # --- MMAs

    @property
    def mma(self) -> str:
        """The statement that multiplies a stage."""
        plan, problem = self.plan, self.plan.problem
        a = "a_smem.index(stage)" + (".permute((1, 0))" if problem.a.major == "mn" else "")
        b = "b_smem.index(stage)" + (".permute((1, 0))" if problem.b.major == "k" else "")
        scales: tuple[str, ...] = ()
        if plan.block_scaled:
            formats = (f'"{operand.dtype.name}"' for operand in (problem.a, problem.b))
            scales = ("a_scale_tmem", "b_scale_tmem", *formats)
        multicast = ("multicast=True",) if plan.cluster_size > 1 else ()
        arguments = (
            a,
            b,
            "accumulator",
            *scales,
            "use_acc=k_step > 0",
            *multicast,
            "mbarriers=[load_empty.index(stage)]",
        )
        name = "tcgen05_mma_scaled" if plan.block_scaled else "tcgen05_mma"
        return fit(f"{name}(", arguments, ")", indent=12, margin=0)

    @property
    def mma_comment(self) -> str:
        """What the MMA of a step begins, and whom its retirement tells that the stage is free."""
        audience = "both CTAs' load warps" if self.plan.paired else "the load warp"
        if self.plan.stage_readers > 1:
            audience = "the load warps of all CTAs whose tiles it read or shares"
        text = f"The first step begins the sums. When the MMAs of a step have retired, they tell {audience}."
        return textwrap.fill(text, width=98, initial_indent="# ", subsequent_indent="# ")

    @property
    def slot(self) -> str:
        """The index that follows a ring of accumulators, or their barriers."""
        return ".index(slot)" if self.plan.accumulators > 1 else ""

    @property
    def sums(self) -> str:
        """The variable that holds the accumulators."""
        return "accumulators" if self.plan.accumulators > 1 else "accumulator"

    @property
    def slot_phase(self) -> str:
        """The phase of an accumulator's barriers for a tile."""
        return "tiles_done // ACCUMULATORS & 1" if self.plan.accumulators > 1 else "tiles_done & 1"

    # --- the epilogue

    @property
    def drain_arguments(self) -> tuple[str, ...]:
        """What converting and storing a tile takes."""
        scalar = ("tensor_scale",) if self.plan.problem.scalar else ()
        return ("d_desc", "row", "column", "accumulator", "accumulator_empty", "d_smem", *scalar)

    def call_drain(self, indent: int) -> str:
        """Return the call that does it."""
        passed = {
            "accumulator": f"{self.sums}{self.slot}",
            "accumulator_empty": f"accumulator_empty{self.slot}",
        }
        items = [passed.get(name, name) for name in self.drain_arguments]
        return fit("drain(", items, ")", indent=indent)

    def define_partition(self, name: str) -> str:
        """Return the head of a role's function."""
        partition = next(role for role in self.plan.partitions if role.name == name)
        return fit(f"def {partition.function}(", partition.arguments, "):")

    # --- tensor memory

    @property
    def tensor_memory(self) -> Iterator[str]:
        """The allocations of tensor memory, as statements."""
        plan = self.plan
        ring = ("ACCUMULATORS",) if plan.accumulators > 1 else ()
        extents = f"[{', '.join((*ring, 'PROGRAM_TILE_M', 'PROGRAM_TILE_N'))}]"
        arguments = ("gl.float32", extents, "ACCUMULATOR_LAYOUT")
        yield fit(f"{self.sums} = allocate_tensor_memory(", arguments, ")", indent=4, margin=0)
        for name in self.wrapper.scales:
            rows = "PROGRAM_TILE_M" if name.startswith("a") else "PROGRAM_TILE_N"
            extents = f"[{rows}, 4 * SCALE_BLOCKS_K]"
            arguments = (f"{name}_desc.dtype", extents, f"{name.upper()}_TMEM_LAYOUT")
            yield fit(f"{name}_tmem = allocate_tensor_memory(", arguments, ")", indent=4, margin=0)


@dataclass(frozen=True)
class BlackwellLayouts(KernelLayouts):
    """The layout constants of one Blackwell plan."""

    plan: Tcgen05Plan

    @property
    def definitions(self) -> Iterator[str]:
        """Each constant's definition, in the order in which operands are named."""
        plan, problem = self.plan, self.plan.problem
        a_axis, b_axis = 0 if problem.a.major == "k" else 1, 0 if problem.b.major == "k" else 1
        yield self._operand("A", problem.a, plan.a_swizzle_bytes, plan.bases(a_axis, None))
        yield self._operand("B", problem.b, plan.b_swizzle_bytes, plan.b_bases(b_axis))
        if plan.block_scaled:
            yield self._scales("A", plan.bases(1, None, rank=5))
            yield self._scales("B", plan.bases(None, 1, rank=5))
        yield self._shared("D", plan.d_swizzle_bytes, problem.d, plan.bases(0, 1))
        yield self._accumulator()
        if plan.block_scaled:
            yield self._constant("A_SCALE_TMEM_LAYOUT", "TensorMemoryScalesLayout", [], plan.bases(0, None))
            yield self._constant("B_SCALE_TMEM_LAYOUT", "TensorMemoryScalesLayout", [], plan.bases(None, 0))
        if plan.launch_control:
            answers = plan.bases(None, None, rank=1)
            arguments = ["vec=1", "per_phase=1", "max_phase=1", "order=[0]"]
            yield self._constant("CLC_LAYOUT", "gl.SwizzledSharedLayout", arguments, answers)

    def _operand(self, name: str, operand: Operand, swizzle_bytes: int, bases: list[list[int]]) -> str:
        bits = max(8, operand.dtype.bits)
        arguments = [f"swizzle_byte_width={swizzle_bytes}", f"element_bitwidth={bits}", "rank=2"]
        if operand.padded:
            arguments.append("fp4_padded=True")
        return self._constant(f"{name}_LAYOUT", "gl.NVMMASharedLayout", arguments, bases)

    def _scales(self, name: str, bases: list[list[int]]) -> str:
        arguments = ["swizzle_byte_width=0", "element_bitwidth=8", "rank=5"]
        return self._constant(f"{name}_SCALE_LAYOUT", "gl.NVMMASharedLayout", arguments, bases)

    def _accumulator(self) -> str:
        """Return the accumulator's layout; its block is what one CTA holds, one column of 32 bits a sum."""
        plan = self.plan
        arguments = [f"block=[{plan.cta_tile_m}, {plan.cta_tile_n}]", "col_stride=1"]
        bases = plan.bases(0, 1)
        pair = ["two_ctas=True"] if plan.paired else []
        arguments += [f"cga_layout={bases}"] if bases else []
        return self._constant("ACCUMULATOR_LAYOUT", "TensorMemoryLayout", [*arguments, *pair], [])


@dataclass(frozen=True)
class BlackwellOverview(KernelOverview):
    """A Blackwell kernel in words."""

    plan: Tcgen05Plan

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
        return f"{inputs}, D {problem.d.name}, accumulated in {problem.accumulator.name}"

    @staticmethod
    def _typed(operand: Operand) -> str:
        name = "tf32 (fp32 in memory)" if operand.dtype.name == "tf32" else operand.dtype.name
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
            ("threads", f"{plan.threads} per CTA"),
            ("registers", f"{pool.default_registers} per epilogue thread, {plan.worker_registers} per other"),
        )

    @property
    def _group(self) -> str:
        return "two CTAs" if self.plan.paired else "one CTA"

    def describe(self) -> str:
        """Say how the kernel goes about it."""
        plan = self.plan
        cluster = "an SM" if plan.cluster_size == 1 else f"a cluster of {plan.cluster_size} SMs"
        if plan.launch_control:
            text = (
                f"There is a program for each tile of D, on {cluster}. One that has done its tile takes over "
                "that of a program which has not started, as cluster launch control assigns it: a warp asks "
                "for the next tile while this one is computed."
            )
        else:
            text = f"One program on {cluster} walks over tiles of D."
        what = "tiles of A and B and their scales" if plan.block_scaled else "tiles of A and B"
        text += f" In each CTA one warp loads {what} through TMA into a ring of stages."
        if plan.paired:
            text += (
                " Pairs of CTAs multiply together: each holds its rows of A and half of B's columns, and the "
                "MMA warp of the first one issues for both. Each holds the sums of its rows in tensor memory."
            )
        else:
            text += " Another issues the MMAs, whose sums are in tensor memory."
        stored = "convert and store D through TMA"
        meanwhile = ", while the next tile is multiplied" if plan.accumulators > 1 else ""
        return f"{text} Four warps read the sums from tensor memory, {stored}{meanwhile}."


@dataclass(frozen=True)
class BlackwellWrapper(KernelWrapper):
    """A Blackwell plan's wrapper."""

    plan: Tcgen05Plan

    @property
    def rows(self) -> str:
        """The constant that holds the rows of A and of D that one box has."""
        return "PROGRAM_TILE_M"

    @property
    def vanishes(self) -> bool:
        """Whether D is zero where A @ B is: nothing is added to it, and activations keep zero."""
        return True

    @property
    def scale_carrier(self) -> str:
        """The type as which TMA moves scales: Triton has none for powers of two."""
        return "torch.uint8" if self.dtype("a_scale").name == "ue8m0" else self.dtype("a_scale").torch
