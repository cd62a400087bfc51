"""The inputs and the exact result of groups: each group is a matmul of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from gemmgen.features.groups.divided_rows import bounds, drawn_rows, hostile_rows, tensor_of_rows
from gemmgen.features.groups.divisions import other_divisions
from gemmgen.features.groups.torch_groups import head_of_groups
from gemmgen.numerics.inputs import ComputedRows, Inputs
from gemmgen.numerics.matrices import Layout
from gemmgen.numerics.side import TWO_RUNS, CheckGroup, Checking
from gemmgen.numerics.torch_call import Head
from gemmgen.problem import Matmul
from gemmgen.problem.groups import Groups
from gemmgen.problem.operations import BLOCK_SCALES, ROW_VECTORS


@dataclass(frozen=True)
class GroupNumbers(Checking):
    """Numbers of a matmul whose M or K is divided into groups."""

    problem: Matmul
    groups: Groups

    def tensors(self, layout: Layout) -> Mapping[str, Callable[[], Tensor]]:
        """Return the tensor that divides M or K: as kernels are planned, or drawn with small integers.

        It is the first to be drawn, and of batches too, which have none: the numbers that a seed gives to A
        and B would change.
        """
        groups, draw, shape = self.groups, layout.draw, layout.shape
        drawn = (
            drawn_rows(groups, shape, draw.generator) if draw and draw.integers and not draw.hostile else None
        )

        def divided() -> Tensor:
            if drawn is not None:
                return drawn
            made = hostile_rows if draw and draw.hostile else tensor_of_rows
            return made(groups, shape, layout.device)

        return {groups.counts: divided} if groups.counts else {}

    def bounds(self, inputs: Inputs) -> Iterator[tuple[int, int]]:
        """Yield the first row of each group, and the row after its last one."""
        counts = self.groups.counts
        divided = inputs.extras[counts] if counts else None
        count = max(len(inputs.a), len(inputs.b)) if divided is None else len(divided)
        return bounds(self.problem, self.groups.extent_of(inputs.shape), divided, count)

    def rows(self, inputs: Inputs, rows: ComputedRows) -> ComputedRows:
        """Return the rows that belong to a group; all of them if groups divide K."""
        return rows if self.groups.divides_k else replace(rows, ranges=tuple(self.bounds(inputs)))

    def parts(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs of each group."""
        return self._of_each_k(inputs) if self.groups.divides_k else self._of_each_rows(inputs)

    def _of_each_k(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs of each group of K: its columns of A, and its rows of B."""
        for group, (first, end) in enumerate(self.bounds(inputs)):
            own = {"c": inputs.extras["c"][group]} if "c" in inputs.extras else {}
            extras = {**inputs.extras, **own}
            if scale := self.problem.a.scale:
                blocks = slice(first // scale.vector, -(-end // scale.vector))
                extras.update({name: extras[name][:, blocks] for name in BLOCK_SCALES})
            yield replace(inputs, a=inputs.a[:, first:end], b=inputs.b[first:end], extras=extras)

    def _of_each_rows(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs of each group of rows: its rows of A and C, its B, and its vectors."""
        a, each_b = inputs.a, inputs.b
        if self.groups.broadcast:
            count = max(len(a), len(each_b))
            a, each_b = a.expand(count, -1, -1), each_b.expand(count, -1, -1)
        a = a.flatten(0, -2)
        for group, ((first, end), b) in enumerate(zip(self.bounds(inputs), each_b, strict=True)):
            extras = dict(inputs.extras)
            for name, tensor in inputs.extras.items():
                if name in ("c", "a_scale"):
                    extras[name] = tensor.flatten(0, -2)[first:end]
                elif name in ROW_VECTORS:
                    extras[name] = tensor.flatten()[first:end]
                elif name == "b_scale" or name in self.problem.vectors:
                    extras[name] = tensor[group]
            yield replace(inputs, a=a[first:end], b=b, extras=extras)

    def check_groups(self) -> tuple[CheckGroup, ...]:
        """Return the group with other divisions of M or K, if a tensor divides it."""
        # Two runs: one of an ``out`` that is refused.
        return (CheckGroup("other divisions", other_divisions, TWO_RUNS),) if self.groups.counts else ()

    def head(self, *, fast_accum: bool) -> Head | None:
        """Return the call of torch that multiplies the groups."""
        return head_of_groups(self.problem, fast_accum=fast_accum)


def side_of(problem: Matmul) -> Checking | None:
    """Return the side of a matmul's groups; None without groups."""
    return GroupNumbers(problem, problem.groups) if problem.groups else None
