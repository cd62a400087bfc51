"""The function of a module that launches its kernels: descriptors, the grid, options, and memory for sums."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.plan.axes import axes_of
from gemmgen.render.arguments import ArgumentTable, passed_as
from gemmgen.render.spelling import fit


@dataclass(frozen=True)
class LaunchView(ArgumentTable):
    """The launch of one plan's kernels as its templates see it."""

    @property
    def cdiv(self) -> str:
        """The function that returns a quotient, rounded up: Triton's, or that of a pack's launcher."""
        return "cdiv" if self.is_packed else "triton.cdiv"

    @property
    def tiles(self) -> str:
        """The tiles of a matrix [m, n], as an expression."""
        along_m = f"{self.cdiv}(m, PROGRAM_TILE_M.value)"
        if (together := self.plan.tiles_together) > 1:
            return f"{along_m} * {self.cdiv}(n, {together} * PROGRAM_TILE_N.value) * {together}"
        return f"{along_m} * {self.cdiv}(n, PROGRAM_TILE_N.value)"

    @property
    def lacks_clusters(self) -> bool:
        """The GPU is known to hold fewer clusters of four CTAs than it has SMs for."""
        gpu = self.plan.gpu
        return gpu.clusters_of_four < gpu.sm_count // 4

    @property
    def rounds(self) -> bool:
        """A and B are fp32 matrices, which the tensor cores round to tf32."""
        return bool(self.plan.problem.a.dtype.in_memory)

    @property
    def workspace(self) -> bool:
        """Calls leave counters in memory, or sums that are added to, which later calls rely on.

        The sums that a kernel leaves for the second kernel of the same call are no workspace.
        """
        return bool(self.plan.restored)

    @property
    def memory(self) -> tuple[str, ...]:
        """The further arguments of a launch: memory for sums of parts of K, and counters."""
        if self.workspace:
            return self._of_kind("workspace")
        return ("sums",) if self._of_kind("workspace") else ()

    @property
    def define_launch(self) -> str:
        """The head of the function that launches the kernels."""
        names = (*self.inputs, *self.written, "out", *self.memory)
        head = fit("def launch(", [f"{name}: Tensor" for name in names], ") -> list:")
        return head if "\n" not in head else fit("def launch(", names, ") -> list:")

    @property
    def written(self) -> tuple[str, ...]:
        """The tensors that a launch writes beside D."""
        written = (each for each in self.plan.arguments if each.kind == "d_scales" or each.tensor == "saved")
        return tuple(passed_as(argument.name) for argument in written)

    def _lying(self, name: str) -> str:
        """Return an argument of the kernel as it lies in memory, in the order of its descriptor."""
        argument = self.plan.argument(name)
        stacked = len(axes_of(self.plan.problem, argument)) > 2
        if stacked and name in ("a", "b"):
            stored = f"{name}.mT" if name in self.transposed else name
            return stored if self.plan.access.leading_axes(name) else f"{stored}.flatten(0, 1)"
        if stacked and name == "c" and self.plan.access.reads_c_of_others:
            return "c.flatten(0, 1)"
        stored = passed_as(argument.tensor)
        if stacked and name == "a_scale":
            stored = "a_scale.mT.flatten(0, 1)"
        elif stacked and name in self.transposed:
            stored = f"{stored}.mT"
        elif name in self.transposed:
            stored = f"{stored}.T"
        # Triton has no type for powers of two: kernels get bytes.
        coded = name in (*self.scales, "d_scale") and argument.dtype.coded
        return f"{stored}.view(torch.uint8)" if coded else stored

    @property
    def kernel_arguments(self) -> str:
        """The list of the arguments of `matmul_kernel`: descriptors, a scalar's tensor, memory for sums."""
        passed = (each.name for each in self.plan.kernel_arguments if each.kind != "workspace")
        arguments = [*map(self._kernel_argument, passed), *self.memory]
        return fit("[", arguments, "]", indent=len("    arguments = "), margin=4)

    def _kernel_argument(self, name: str) -> str:
        """Return the expression of one tensor: its descriptor, by its row of TMA, or itself."""
        stored, argument = self._lying(name), self.plan.argument(name)
        if argument.is_addressed:
            return stored
        if describe := self.plan.access.describing_function(name):
            return f'{describe}("{passed_as(name)}", {stored})'
        if self.plan.access.loads_k_from_any_row and argument.tensor in ("a", "b"):
            return f'describe_rows("{name}", {stored})'
        described = [stored, f'**TMA["{passed_as(name)}"]']
        if self.rounds and name in ("a", "b", *self.further_parts):
            described.append("round_f32_to_tf32=True")
        return f"TensorDescriptor.from_tensor({', '.join(described)})"

    @property
    def reduction_arguments(self) -> str:
        """The list of the arguments of the kernel that adds up the partial sums."""
        strides = ["c.stride(0)"] if self.plan.problem.c else []
        extras = (name for name in self.extras if name not in self.scales)
        arguments = ["sums", *extras, "out", *strides, "out.stride(0)", "m", "n"]
        return fit("[", arguments, "]", indent=len("    reduction_arguments = "), margin=4)
