"""The rule of kernels whose C and D have two matrices side by side: backwards of gates."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import hint, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.extent_rules import tile_power_of_two
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.work_rules import undivided

ONE_MATRIX = without_expression("epilogue.d")
"""The fix that leaves the matrices in C and D out."""


@rule("c-blocks", after=[tile_power_of_two.at("tile.n")])
def c_blocks(plan: WgmmaKernel) -> Iterator[Finding]:
    """A tile of C and of D has both matrices for the columns of an accumulator that sums all of K."""
    if plan.problem.d_blocks > 1:
        yield from _of_matrices(plan)
        single = "one matrix in C and in D"
        yield from undivided(plan, _with(plan), single=single, read="a C", other=ONE_MATRIX)
        yield from _of_tiles(plan)


def _with(plan: WgmmaKernel) -> str:
    """Return the matrices in C as words that follow a fault."""
    return f"with {' and '.join(plan.problem.epilogue.c_blocks)} in C"


def _of_matrices(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of the matrices."""
    problem, matrices = plan.problem, _with(plan)
    epilogue = problem.epilogue
    read = {load.block for load in epilogue.loaded}
    for name in epilogue.c_blocks:
        if name not in read:
            fix = ONE_MATRIX | hint(f"{name} in an expression")
            yield Finding("epilogue.d", f"{name} in no expression", "kernels load both matrices in C", fix)
    if problem.copies_misaligned:
        limit = "copies of misaligned tensors need one matrix in C and in D"
        yield Finding("operands.misaligned", f"copy {matrices}", limit, use("refuse") | ONE_MATRIX)
    if problem.groups and problem.groups.divides_k:
        limit = "but these matrices have a row for each row of A, and groups of K share all rows"
        found = f"{problem.groups.of} {matrices}"
        yield Finding("epilogue.c", found, limit, ONE_MATRIX | leave_out("groups"))
    if problem.scatters_d:
        limit = "but threads that store rows by an index store one matrix"
        yield Finding("groups.d_rows", f"d_rows {matrices}", limit, leave_out() | ONE_MATRIX)
    if problem.d.bits == 8 or problem.accumulator.integer:
        limit = "gradients of 8 bits need scales, which are not supported for two matrices"
        fix = use("bf16", "fp16", "fp32") | ONE_MATRIX
        yield Finding("operands.d.dtype", f"D is {problem.d.name} {matrices}", limit, fix)


def _of_tiles(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of the instruction, and of the columns of a tile."""
    if plan.swap_ab:
        limit = "the columns of D are rows of the accumulator then, where no matrix lies beside another"
        yield Finding("mma.swap_ab", f"swap-AB {_with(plan)}", limit, use(False) | ONE_MATRIX)
