"""Measure how many registers a Hopper consumer needs where long K steps, an epilogue and a cluster meet.

No GPU is needed: each kernel of the grid is compiled with ever more registers, from what it needs by its
construction on, until nothing spills. What a kernel is expected to take, in ``gemmgen/plan/wgmma/bounds.py``,
was read off these; for a new Triton this repeats it:

    python -m benchmarks.registers.measure [--out benchmarks/registers/needed.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gemmgen import triton_api
from gemmgen.features.rendering import render
from gemmgen.lower import ShortageError, lower
from gemmgen.plan.rule import altered
from gemmgen.plan.wgmma.bounds import most_consumer_registers, needed_registers
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.tried.derived import PRODUCER_REGISTERS
from tools.fuzz.draft import spec_of
from tools.fuzz.judge import plan_without
from tools.fuzz.tables import Values

TILES = (
    ("ping_pong", 256, 64, 128),
    ("ping_pong", 256, 64, 64),
    ("cooperative", 256, 128, 128),
    ("cooperative", 256, 128, 64),
    ("cooperative", 256, 64, 256),
    ("cooperative", 128, 128, 256),
    ("ping_pong", 256, 32, 256),
    ("cooperative", 128, 64, 256),
    ("cooperative", 128, 16, 512),
)
"""Specialization, then rows, columns and K of a tile: steps of 8 to 64 instructions, 8 to 128 sums."""
EPILOGUES: tuple[tuple[str, ...], ...] = (
    ("residual", "silu"),
    ("residual",),
    ("row_scale", "column_scale", "column_bias"),
    ("residual", "gelu_erf"),
    (),
)
CLUSTERS = ((1, 2), (1, 1))
SKIPPED = ("accumulator-registers", "consumer-registers")
"""The rules that the measurements are for."""
STEP = 8
"""What registers are asked for by."""


def grid() -> Iterator[Values]:
    """Yield the specs that are measured."""
    for kind, m, n, k in TILES:
        for ops in EPILOGUES:
            for cluster_m, cluster_n in CLUSTERS:
                values: Values = {
                    "title": "registers",
                    "target": "h100",
                    "operands.a.dtype": "bf16",
                    "operands.b.dtype": "bf16",
                    "operands.d.dtype": "bf16",
                    "tile.m": m,
                    "tile.n": n,
                    "tile.k": k,
                    "cluster.m": cluster_m,
                    "cluster.n": cluster_n,
                    "warp_specialization.kind": kind,
                }
                if ops:
                    values["epilogue.ops"] = list(ops)
                if "residual" in ops:
                    values["operands.c.dtype"] = "bf16"
                yield values


def plan_of(values: Values) -> WgmmaKernel | None:
    """Return the plan of a spec, stored whole if it can be; None where shared memory holds none."""
    whole = {**values, "epilogue.subtile_n": values["tile.n"]}
    for stated in (whole, values):
        plan = plan_without(spec_of(stated), SKIPPED)
        if isinstance(plan, WgmmaKernel):
            # Shared equally, registers would be no more for a consumer than for the producer.
            return altered(plan, producer_registers=PRODUCER_REGISTERS)
    return None


def measured(plan: WgmmaKernel, asked: int) -> tuple[int | None, int]:
    """Return the fewest registers from `asked` on that do not spill, and the bytes that spill with `asked`.

    None is where no number of them does.
    """
    first = 0
    for registers in range(asked, most_consumer_registers(plan) + 1, STEP):
        found = spilled(replace(plan, consumer_registers=registers))
        first = first or found
        if not found:
            return registers, first
    return None, first


def spilled(plan: WgmmaKernel) -> int:
    """Return the bytes that spill, 1 where the compiler serializes MMAs instead."""
    try:
        lower(render(plan, spec_name="registers.yaml", spec_sha256=""), plan, path="registers.yaml", stem="r")
    except ShortageError as error:
        return error.verdict.spilled_bytes or 1
    return 0


def main() -> None:
    """Measure the grid and write a line for each of its kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/registers/needed.json"))
    out = parser.parse_args().out
    rows: list[dict[str, object]] = []
    for values in grid():
        plan = plan_of(values)
        if plan is None:
            continue
        asked = min(needed_registers(plan), most_consumer_registers(plan))
        need, bytes_spilled = measured(plan, asked)
        row: dict[str, object] = {
            "kind": plan.specialization,
            "tile": [plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k],
            "cluster": [plan.cluster_m, plan.cluster_n],
            "ops": list(values.get("epilogue.ops", ())),
            "subtiles": plan.subtiles,
            "sums": plan.accumulator_registers,
            "mmas": plan.mmas_per_step,
            "asked": needed_registers(plan),
            "needed": need,
            "spilled_bytes": bytes_spilled,
        }
        rows.append(row)
        sys.stderr.write(f"{json.dumps(row)}\n")
    data = {"triton": triton_api.found_version(), "kernels": rows}
    out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
