"""Traits of indices of rows."""

from __future__ import annotations

from gemmgen.plan.fix import leave_out
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel

A_ROWS = Trait[WgmmaKernel](
    "an index of rows of A",
    "groups.a_rows",
    lambda plan: plan.problem.gathers_a,
    "a_rows",
    leave_out(),
)
D_ROWS = Trait[WgmmaKernel](
    "an index of rows of D",
    "groups.d_rows",
    lambda plan: plan.problem.scatters_d,
    "d_rows",
    leave_out(),
)
