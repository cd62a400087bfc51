"""Traits of gates and of their backwards."""

from __future__ import annotations

from gemmgen.plan.fix import use
from gemmgen.plan.not_together import Trait
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.resources import WgmmaKernel


def accumulators(plan: WgmmaKernel) -> str:
    """Return the accumulators of a gate as words."""
    return f"{' and '.join(plan.problem.epilogue.accumulators)} as accumulators"


GATE = Trait[WgmmaKernel](
    "a gate",
    "epilogue.d",
    lambda plan: plan.problem.gated,
    accumulators,
    without_expression(),
)
GATE_AS_LOADED = Trait[WgmmaKernel](
    "a gate without decoded weights",
    "epilogue.d",
    lambda plan: plan.problem.gated and plan.problem.b.decoded is None,
    accumulators,
    without_expression(),
)
GATE_OF_BLOCKS = Trait[WgmmaKernel](
    "a gate of two blocks of columns of B",
    "epilogue.d",
    lambda plan: plan.problem.in_blocks,
    accumulators,
    without_expression(),
)
ORDER_OF_BLOCKS = Trait[WgmmaKernel](
    "columns of B in two blocks",
    "epilogue.columns",
    lambda plan: plan.problem.in_blocks,
    "columns of B in two blocks",
    use("interleaved"),
)
N_CONTIGUOUS_BLOCKS = Trait[WgmmaKernel](
    "an N-contiguous B of two blocks of columns",
    "operands.b.major",
    lambda plan: plan.problem.in_blocks and plan.problem.b.major == "mn",
    "an N-contiguous B of two blocks of columns",
    use("k") | use("interleaved", field="epilogue.columns"),
)
GATE_BACKWARD = Trait[WgmmaKernel](
    "the backward of a gate",
    "epilogue.c",
    lambda plan: plan.problem.d_blocks > 1,
    lambda plan: f"{' and '.join(plan.problem.epilogue.c_blocks)} in C",
    without_expression("epilogue.d"),
)
