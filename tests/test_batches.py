"""Batches: the kernels that are planned for torch.bmm's problems, and what they combine with."""

from __future__ import annotations

import pytest
from hopper import hopper

from gemmgen.planner import plan_spec
from gemmgen.product import make_of
from gemmgen.spec.load import parse_spec
from gemmgen.verify.launches import all_launches
from gemmgen.verify.simulation import simulate_product

SPEC = """\
title: batches
target: h200
operands: {{a: {{dtype: bf16, major: {a}}}, b: {{dtype: bf16, major: {b}}}, d: {{dtype: bf16}}}}
groups: {{kind: {kind}, count: {count}}}
problem: {{m: {m}, n: {n}, k: {k}}}
check: {{shapes: [[72, 136, 128], [200, 200, 264]]}}
{decisions}
"""


def spec(
    decisions: str = "",
    *,
    kind: str = "batched",
    majors: str = "k mn",
    count: int = 16,
    shape: tuple[int, int, int] = (256, 512, 1024),
) -> bytes:
    """Return the text of a spec; `majors` are those of A and of B, `shape` has M, N and K."""
    (a, b), (m, n, k) = majors.split(), shape
    return SPEC.format(a=a, b=b, kind=kind, count=count, m=m, n=n, k=k, decisions=decisions).encode()


@pytest.mark.parametrize("b", ["k", "mn"])
@pytest.mark.parametrize(
    ("count", "shape", "schedule"),
    [
        (128, (1, 512, 128), "tiled"),
        (128, (64, 512, 128), "tiled"),
        (64, (256, 256, 256), "tiled"),
        (512, (64, 64, 2048), "tiled"),
        (128, (512, 128, 512), "persistent"),
        (16, (1024, 1024, 1024), "persistent"),
        (8, (4096, 4096, 4096), "persistent"),
        (32, (128, 4096, 128), "persistent"),
    ],
)
def test_small_batches_are_planned_with_one_tile_for_each_program(
    count: int, shape: tuple[int, int, int], schedule: str, b: str
) -> None:
    plan = hopper(plan_spec(parse_spec(spec(majors=f"k {b}", count=count, shape=shape), "batches")))
    assert plan.schedule_kind == schedule
    assert plan.specialized == (schedule == "persistent")


VARIANTS = {
    "one step at a time": spec(
        "tile: {m: 64, n: 64, k: 64}\nschedule: {kind: tiled}\nbuffering: {stages: 1}", majors="mn mn"
    ),
    "several tiles without roles": spec("tile: {m: 64, n: 64, k: 64}\nwarp_specialization: {kind: none}"),
    "composed tiles": spec("tile: {m: 128, n: 192, k: 64}\ncluster: {m: 2, n: 1}"),
    "vectors of groups that follow one another": spec(
        "tile: {m: 128, n: 128, k: 64}\nepilogue: {ops: [column_bias, row_scale]}", kind="m_offsets"
    ),
    "vectors in a cluster": spec(
        "tile: {m: 128, n: 128, k: 64}\ncluster: {m: 2, n: 2}\nepilogue: {ops: [column_bias, row_scale]}",
        majors="k k",
    ),
    "vectors with one tile a program": spec(
        "tile: {m: 64, n: 128, k: 64}\nschedule: {kind: tiled}\nepilogue: {ops: [column_bias, row_scale]}",
        majors="mn mn",
    ),
    "vectors with swap-AB": spec(
        "mma: {swap_ab: true}\ntile: {m: 16, n: 128, k: 128}\nschedule: {kind: tiled}\n"
        "epilogue: {ops: [column_bias, row_scale]}"
    ),
    "A loaded early in a cluster": spec(
        "tile: {m: 128, n: 128, k: 64}\ncluster: {m: 2, n: 1}\ndependent_launch: {early: a}", majors="mn k"
    ),
    "a gate in blocks": spec(
        "tile: {m: 64, n: 128, k: 64}\nschedule: {kind: tiled}\n"
        "epilogue: {accumulators: [gate, up], d: silu(gate) * up}",
        majors="k k",
    ),
    "an interleaved gate of groups with a number of rows": spec(
        "tile: {m: 128, n: 64, k: 64}\n"
        "epilogue: {accumulators: [gate, up], d: silu(gate) * up, columns: interleaved}",
        kind="m_masked",
        majors="mn mn",
    ),
}
"""Specs of kernels that no committed module has."""


@pytest.mark.nightly
@pytest.mark.parametrize("text", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_is_clean_in_the_simulator(text: bytes) -> None:
    product = make_of(parse_spec(text, "batches"))
    assert simulate_product(product, all_launches(product.plan, 2)).problems == ()
