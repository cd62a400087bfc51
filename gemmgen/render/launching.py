"""The function of a module that launches its kernels: descriptors, the grid, options, and memory for sums."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from gemmgen.render.arguments import ArgumentTable, passed_as
from gemmgen.render.spelling import LINE_LENGTH, fit


@dataclass(frozen=True)
class LaunchView(ArgumentTable):
    """The launch of one plan's kernels as its templates see it."""

    @property
    def d_dtype(self) -> str:
        """D's dtype as a further argument of `new_empty` on A; empty if A has the same one."""
        problem = self.plan.problem
        return f", dtype={problem.d.torch}" * (problem.d.torch != problem.a.dtype.torch)

    @property
    def cdiv(self) -> str:
        """The function that returns a quotient, rounded up: Triton's, or that of a pack's launcher."""
        return "cdiv" if self.is_packed else "triton.cdiv"

    @property
    def tiles(self) -> str:
        """The tiles of D."""
        if self.plan.schedule_kind == "single_tile":
            return "1"
        along_m = f"{self.cdiv}(m, PROGRAM_TILE_M.value)"
        if (together := self.plan.tiles_together) > 1:
            return f"{along_m} * {self.cdiv}(n, {together} * PROGRAM_TILE_N.value) * {together}"
        return f"{along_m} * {self.cdiv}(n, PROGRAM_TILE_N.value)"

    @property
    def out_unit(self) -> int:
        """The elements of D in 16 bytes, which TMA writes at a time."""
        return self.plan.d_unit

    @property
    def launch_options(self) -> str:
        """The options of a launch, as a dict's text."""
        plan = self.plan
        options = {"num_warps": plan.default_warps, "num_ctas": plan.cluster_size}
        if plan.launch_register_limit:
            options["maxnreg"] = plan.launch_register_limit
        if plan.dependent:
            options["launch_pdl"] = True
        options["enable_fp_fusion"] = True
        return str(options).replace("'", '"')

    @property
    def define_launch_options(self) -> str:
        """The constants of the launch options, each under a comment."""
        line = f"LAUNCH_OPTIONS = {self.launch_options}"
        short = f"{line}  # Triton warns of unset FP fusion"
        text = short if len(short) <= LINE_LENGTH else f"# {self.launch_options_meaning}\n{line}"
        if not self.plan.reduces_apart:
            return text
        options = {"num_warps": self.plan.reduction_warps, "launch_pdl": True, "enable_fp_fusion": True}
        return f"{text}\nREDUCTION_OPTIONS = {options}".replace("'", '"')

    @property
    def launch_options_meaning(self) -> str:
        """The launch options in words, as lines of a comment."""
        plan = self.plan
        options = f"Warps of {'the first partition' if plan.specialized else 'a CTA'}, CTAs per cluster"
        if plan.launch_register_limit:
            options += f", registers for {plan.occupancy} per SM"
        options += ", dependent launch" * plan.dependent
        lines = textwrap.wrap(f"{options}; Triton warns of unset FP fusion.", width=LINE_LENGTH - len("# "))
        return "\n# ".join(lines)

    @property
    def programs(self) -> str:
        """The number of programs that run: one for each tile, or as many as the SMs hold."""
        plan = self.plan
        resident = "sm_count"
        if plan.cluster_size > 1:
            resident = f"sm_count // {plan.cluster_size}"
        elif plan.occupancy > 1:
            resident = f"sm_count * {plan.occupancy}"
        if plan.cluster_size > 2 and self._lacking:
            resident = f"{resident}, {plan.gpu.clusters_of_four}"
        return f"min(tiles, {resident})"

    @property
    def residency_comment(self) -> str:
        """The reason for a grid with fewer programs than the SMs could hold, as comment lines."""
        if self.plan.cluster_size <= 2:
            return ""
        if not self._lacking:
            return "    # Clusters lie within GPCs: whether they hold as many was not measured.\n"
        return (
            "    # Clusters lie within GPCs, some of which lack SMs: an H200 holds "
            f"{self.plan.gpu.clusters_of_four} of four CTAs.\n"
            "    # One program more would begin when the others end, and double the kernel's time.\n"
        )

    @property
    def _lacking(self) -> bool:
        """The GPU is known to hold fewer clusters of four CTAs than it has SMs for."""
        gpu = self.plan.gpu
        return gpu.clusters_of_four < gpu.sm_count // 4

    @property
    def grid(self) -> str:
        """The number of programs."""
        programs = self.programs if self.plan.persistent else "tiles"
        if self.plan.splits_per_tile > 1:
            programs = programs.replace("tiles", "tiles * SPLITS.value")
        return programs

    @property
    def reads_sm_count(self) -> bool:
        """The number of programs depends on the GPU."""
        return "sm_count" in self.grid

    @property
    def rounds(self) -> bool:
        """A and B are fp32 matrices, which the tensor cores round to tf32."""
        return bool(self.plan.problem.a.dtype.in_memory)

    @property
    def rounding_comment(self) -> str:
        """The reason for descriptors that round, as a comment line; empty if none does."""
        if not self.rounds:
            return ""
        reason = "The tensor cores would cut fp32 off after 10 bits of mantissa: TMA rounds A and B to tf32."
        return f"    # {reason}\n"

    @property
    def workspace(self) -> bool:
        """Calls leave counters in memory, or sums that are added to, which later calls rely on.

        The sums that a kernel leaves for the second kernel of the same call are no workspace.
        """
        return bool(self._of_kind("workspace")) and not self.plan.reduces_apart

    @property
    def memory(self) -> tuple[str, ...]:
        """The further arguments of a launch: memory for sums of parts of K, and counters."""
        if self.plan.reduces_apart:
            return ("sums",)
        return self._of_kind("workspace")

    @property
    def _counters_of_tile(self) -> int:
        """Counters of a tile: each consumer that has rows of its own counts the parts of them."""
        return self.plan.counting_partitions or 1

    @property
    def counters(self) -> str:
        """The extents of the counters, as a tuple's text."""
        return "(tiles_m, tiles_n, CONSUMERS.value)" if self._counters_of_tile > 1 else "(tiles_m, tiles_n)"

    @property
    def partials(self) -> str:
        """The factor from an element of D to its number of sums."""
        return "SPLITS.value * " if self.plan.restored == ("counters",) else ""

    @property
    def left_zero(self) -> str:
        """The memory that each call leaves zero: the counters, and also sums that programs add to."""
        return "the counters" if self.plan.restored == ("counters",) else "both"

    @property
    def sums_are(self) -> str:
        """The torch function that makes memory for sums: `zeros` if programs add to them."""
        return "empty" if self.plan.restored == ("counters",) else "zeros"

    @property
    def define_launch(self) -> str:
        """The head of the function that launches the kernels."""
        names = (*self.inputs, *self.written, "out", *self.memory)
        head = fit("def launch(", [f"{name}: Tensor" for name in names], ") -> list:")
        return head if "\n" not in head else fit("def launch(", names, ") -> list:")

    @property
    def written(self) -> tuple[str, ...]:
        """The tensors that a launch writes beside D."""
        return ("out_scale",) * bool(self.plan.problem.d_scale) + ("saved",) * self.plan.problem.saves

    def _lying(self, name: str) -> str:
        """Return an argument of the kernel as it lies in memory, in the order of its descriptor."""
        argument = self.plan.argument(name)
        tensor = passed_as(argument.tensor)
        groups = self.plan.problem.groups
        if groups and ((name == "b" and groups.spans("b")) or (name == "a" and groups.apart)):
            stored = f"{name}.mT" if name in self.transposed else name
            return stored if self.plan.access.leading_axes(name) else f"{stored}.flatten(0, 1)"
        if name == "c" and groups and groups.apart and self.plan.access.reads_c_of_others:
            return "c.flatten(0, 1)"
        # Triton has no type for powers of two: kernels get bytes.
        viewed = ".view(torch.uint8)" * (name in (*self.scales, "d_scale") and argument.dtype.coded)
        if name == "a_scale" and groups and groups.apart:
            return f"a_scale.mT.flatten(0, 1){viewed}"
        return f"{tensor}{'.T' * (name in self.transposed)}{viewed}"

    @property
    def kernel_arguments(self) -> str:
        """The list of the arguments of `matmul_kernel`: descriptors, a scalar's tensor, memory for sums.

        The kernel gets A and B with their scales alone if a second kernel reads the other tensors.
        """
        passed = [argument.name for argument in self.plan.arguments if argument.kind != "workspace"]
        if self.plan.reduces_apart:
            passed = ["a", "b", *self.scales]
        return fit(
            "[",
            [*map(self._kernel_argument, passed), *self.memory],
            "]",
            indent=len("    arguments = "),
            margin=4,
        )

    def _kernel_argument(self, name: str) -> str:
        """Return the expression of one tensor: its descriptor, by its row of TMA, or itself."""
        stored, argument = self._lying(name), self.plan.argument(name)
        if argument.is_addressed:
            return stored
        if describe := self.plan.access.describing_function(name):
            return f'{describe}("{passed_as(name)}", {stored})'
        if self.plan.access.loads_k_from_any_row and argument.tensor in ("a", "b"):
            return f'describe_rows("{name}", {stored})'
        rounding = ", round_f32_to_tf32=True" * (self.rounds and name in ("a", "b", *self.further_parts))
        return f'TensorDescriptor.from_tensor({stored}, **TMA["{passed_as(name)}"]{rounding})'

    @property
    def reduction_arguments(self) -> str:
        """The list of the arguments of the kernel that adds up the partial sums."""
        strides = ["c.stride(0)"] if self.plan.problem.c else []
        extras = (name for name in self.extras if name not in self.scales)
        arguments = ["sums", *extras, "out", *strides, "out.stride(0)", "m", "n"]
        return fit("[", arguments, "]", indent=len("    reduction_arguments = "), margin=4)

    @property
    def find_extents(self) -> str:
        """The statements that find the number of tiles."""
        if self.plan.schedule_kind == "single_tile":
            return "tiles = 1"
        if self.plan.problem.groups:
            return self._find_tiles_of_groups
        if self.plan.problem.gated:
            return f"m, n = out.shape\n    tiles = {self.tiles}"
        return f"m, n = a.shape[0], b.shape[1]\n    tiles = {self.tiles}"

    @property
    def _find_tiles_of_groups(self) -> str:
        """The statements that find the tiles; of rows that only the GPU knows, the most that there can be."""
        groups = self.plan.problem.groups
        assert groups is not None
        along_n = f"{self.cdiv}(n, PROGRAM_TILE_N.value)"
        several = self.plan.problem.d_blocks > 1
        if groups.stacks("d"):
            along_m = f"{self.cdiv}(m, PROGRAM_TILE_M.value)"
            extents = "(groups, m), n = out.shape[:2], b.shape[2]" if several else "groups, m, n = out.shape"
            return f"{extents}\n    tiles = groups * {along_m} * {along_n}"
        most = (
            "# Each group has at most one tile that is not full, and only groups with rows have tiles.\n    "
        )
        rows = "tile_rows = min(m, m // PROGRAM_TILE_M.value + offs.shape[0])"
        extents = "a.shape[0], out.shape[1]" if self.plan.problem.scatters_d else "out.shape"
        extents = "out.shape[0], b.shape[2]" if several else extents
        return f"m, n = {extents}\n    {most}{rows}\n    tiles = tile_rows * {along_n}"
