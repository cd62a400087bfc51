"""The planner ends in a plan or in diagnostics: no spec that loads makes a rule raise."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gemmgen.errors import GemmgenError
from gemmgen.plan.capacity import largest_that_fits
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import altered
from gemmgen.plan.search import spread
from gemmgen.planner import attempted, plan_spec
from gemmgen.spec import SpecFile
from gemmgen.spec.model import spec_of
from tools.fuzz import draft, tables

pytestmark = pytest.mark.quick

Stated = Mapping[str, Any]
OPERANDS: tuple[tuple[Stated, Stated], ...] = (
    *((each, each) for each in ({"dtype": dtype} for dtype in ("bf16", "fp16", "tf32", "e4m3", "int8"))),
    *(
        (each, each)
        for each in (
            {"dtype": dtype, "scale": {"format": name}}
            for dtype, name in (("e4m3", "mxfp8"), ("e2m1", "mxfp4"), ("e2m1", "nvfp4"))
        )
    ),
    ({"dtype": "e4m3", "scale": {"format": "mxfp8"}}, {"dtype": "e2m1", "scale": {"format": "mxfp4"}}),
)
"""A and B: each dense type, each format of scales, and two formats beside each other."""
CTAS = (1, 2, 4, 8)
"""CTAs of a cluster along M, and along N."""
RESULTS = (("fp32", None), ("fp32", "fp32"), ("bf16", "bf16"))
"""The types of D, and of C where there is one."""
TILES: tuple[Stated, ...] = (
    {},
    {"n": 256},
    {"n": 64},
    {"m": 64},
    {"k": 256},
    {"n": 256, "k": 256},
)
"""What the spec states of the tile: nothing, or extents that leave little memory."""
SAMPLES = {"b200": 240, "h100": 24}
"""Of 2,592 specs, those that are planned: a Blackwell one takes 10 ms and a Hopper one 80."""
DRAFTS = 60
"""Random Blackwell specs, each of them planned until it is legal."""


def swept(target: str) -> Iterator[SpecFile]:
    """Yield a sample of the specs of all combinations, evenly spread; GEMMGEN_SWEPT_SPECS is their number."""
    every = [*itertools.product(OPERANDS, CTAS, CTAS, RESULTS, TILES)]
    for index in spread(len(every), int(os.environ.get("GEMMGEN_SWEPT_SPECS", SAMPLES[target]))):
        (a, b), along_m, along_n, (d, c), tile = every[index]
        operands = {"a": a, "b": b, "d": {"dtype": d}, **({"c": {"dtype": c}} if c else {})}
        cluster = {"m": along_m, "n": along_n}
        spec = spec_of(
            {"title": "swept", "target": target, "operands": operands, "cluster": cluster, "tile": tile}
        )
        assert spec
        yield SpecFile(spec, path="swept.yaml", stem="swept", sha256="", positions={}, key_positions={})


@pytest.mark.sample(1)
@pytest.mark.check
@pytest.mark.parametrize("target", SAMPLES)
def test_every_cluster_tile_and_type_is_planned_or_refused_in_words(target: str) -> None:
    planned = refused = 0
    for source in swept(target):
        found = attempted(source)
        if isinstance(found, Kernel):
            planned += 1
        else:
            assert found
            assert "use a smaller tile" not in {str(violation.fix) for violation in found}
            refused += 1
    assert min(planned, refused) > 0


@pytest.mark.nightly
def test_a_refused_cluster_of_blackwell_gets_advice() -> None:
    refused = [source for source in swept("b200") if not isinstance(attempted(source), Kernel)]
    for source in refused[::12]:
        with pytest.raises(GemmgenError) as raised:
            plan_spec(source)
        assert raised.value.diagnostics


@pytest.mark.nightly
def test_random_blackwell_specs_with_c_are_planned_or_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, kinds = tables.TABLES["sm100"]
    with_c: tables.Stated = {
        **table,
        "operands.c.dtype": ("bf16", "fp16", "fp32"),
        "cluster.n": CTAS,
        "epilogue.ops": (*tables.OPS, *tables.ROW_AND_COLUMN_OPS),
    }
    monkeypatch.setitem(tables.TABLES, "sm100", (with_c, kinds))
    read_c = 0
    for number in range(DRAFTS):
        *_, last = draft.drafts("sm100", 39, number)
        read_c += "operands.c.dtype" in last.values
    assert read_c >= DRAFTS // 10


@pytest.mark.parametrize("along_n", [2, 4, 8])
def test_an_open_tile_of_a_cluster_along_n_is_narrow_enough_for_c_and_d(along_n: int) -> None:
    dtypes = {"a": "bf16", "b": "bf16", "c": "fp32", "d": "fp32"}
    operands = {name: {"dtype": dtype} for name, dtype in dtypes.items()}
    spec = spec_of({"title": "t", "target": "b200", "operands": operands, "cluster": {"m": 1, "n": along_n}})
    assert spec
    found = attempted(SpecFile(spec, path="", stem="", sha256="", positions={}, key_positions={}))
    assert isinstance(found, Kernel)
    assert found.cta_tile_n == found.subtile_n == 128


def test_a_tile_of_which_no_field_alone_is_to_blame_gets_a_fix_without_a_value() -> None:
    (source,) = itertools.islice(swept("b200"), 1)
    plan = attempted(source)
    assert isinstance(plan, Kernel)
    deep = altered(plan, stages=100_000)  # barriers alone exceed shared memory
    attempts = ((deep, "cta_tile_k", "tile.k"), (deep, "cta_tile_n", "tile.n"))
    field, fix = largest_that_fits(attempts, legal=lambda _: True)
    assert (field, str(fix)) == ("tile.n", "use a smaller tile")
