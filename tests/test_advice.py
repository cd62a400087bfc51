"""Advice ends: a machine that follows it comes to a legal plan, and nobody is sent in a circle."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
from advice import (
    MOST_ROUNDS,
    asked,
    changed,
    follow,
    illegal_alternatives,
    invalid_specs,
    layer_specs,
    refused_specs,
)
from modules import ROOT

from gemmgen.errors import GemmgenError
from gemmgen.planner import applied, plan_spec
from gemmgen.spec import load_spec

SEED = 1
SAMPLE = 20
"""Random refused specs of this seed; ``python tests/advice.py`` follows the advice of 2,000 others."""
LAYERS = 150
"""Random specs of layers whose advice is followed."""
OPERANDS = "operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}\n"


def told(tmp_path: Path, text: str) -> list[str]:
    """What is said about a spec, without its path."""
    path = tmp_path / "spec.yaml"
    path.write_text(f"title: t\ntarget: h100\n{OPERANDS}{text}")
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(path))
    return [str(found).removeprefix(f"{path.as_posix()}:") for found in caught.value.diagnostics]


@pytest.mark.sample(150)
@pytest.mark.parametrize("path", invalid_specs(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_an_invalid_spec_is_advised_ends_in_a_legal_one(path: Path) -> None:
    followed = follow(path)
    assert followed is not None
    assert not followed.fault
    assert followed.rounds <= MOST_ROUNDS


@pytest.mark.nightly
def test_what_random_refused_specs_are_advised_ends_in_legal_ones(tmp_path: Path) -> None:
    followed = 0
    for number, path in refused_specs(tmp_path, SEED, count()):
        if found := follow(path):
            assert not found.fault, number
            followed += 1
        if followed == SAMPLE:
            break


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, LAYERS, 30))
def test_what_refused_specs_of_layers_are_advised_ends_in_legal_ones(first: int, tmp_path: Path) -> None:
    followed = {
        number: follow(path) for number, path in layer_specs(tmp_path, SEED, range(first, first + 30))
    }
    told = {number: found for number, found in followed.items() if found}
    assert len(told) >= 25  # others are no specs, or no rule refuses them
    assert not {number: found.fault for number, found in told.items() if found.fault}


@pytest.mark.nightly
@pytest.mark.parametrize("folder", ["rules", "choices", "blackwell"])
def test_each_change_that_a_message_names_is_legal(folder: str) -> None:
    paths = [path for path in invalid_specs() if path.parent.name == folder]
    assert not {path.stem: wrong for path in paths if (wrong := illegal_alternatives(path))}


@pytest.mark.nightly
def test_each_change_that_a_message_about_a_layer_names_is_legal(tmp_path: Path) -> None:
    found = {number: illegal_alternatives(path) for number, path in layer_specs(tmp_path, SEED, range(30))}
    assert not {number: wrong for number, wrong in found.items() if wrong}


# --- the circles that users found


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["tf32", "e4m3", "e5m2", "int8"])
@pytest.mark.parametrize("major", ["", ", major: mn"])
def test_groups_of_k_of_a_type_that_is_read_along_k_are_sent_to_another_type(
    dtype: str, major: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    operands = f"a: {{dtype: {dtype}{major}}}, b: {{dtype: {dtype}}}, d: {{dtype: bf16}}"
    path.write_text(
        f"title: t\ntarget: h100\noperands: {{{operands}}}\ngroups: {{kind: k_offsets, count: 4}}\n"
    )
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(path))
    (found,) = caught.value.diagnostics
    assert found.field == "operands.a.dtype"
    assert dict(found.advice)["operands.a.dtype"] == "bf16"
    followed = follow(path)
    assert followed
    assert (followed.rounds, followed.fault) == (1, "")


@pytest.mark.quick
def test_the_operation_is_left_out_and_not_the_groups(tmp_path: Path) -> None:
    found = told(tmp_path, "groups: {kind: k_offsets, count: 4}\nepilogue: {ops: [column_bias]}\n")
    assert [each.rpartition("; use ")[2] for each in found[:2]] == ["mn, or no groups"] * 2
    assert found[2].endswith("; leave it out, or use no groups")


@pytest.mark.quick
def test_a_message_names_no_change_if_none_is_legal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gemmgen.planner.repair.MOST_JUDGED", -1)
    (found,) = told(tmp_path, "schedule: {splits: 100}\n")
    assert found.endswith("added up to a tile")


SCALES = (
    "operands:\n  a: {{dtype: {a}, scale: {{format: {scale}}}}}\n"
    "  b: {{dtype: {a}, scale: {{format: {scale}}}}}\n  d: {{dtype: bf16}}\n"
)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("elements", "scale", "formats"),
    [
        ("e4m3", "mxfp8", ("ue8m0_1x32", "ue8m0_1x32")),
        ("e4m3", "nvfp4", ("fp32_1x128", "fp32_128x128")),
    ],
)
def test_scales_of_blackwell_become_those_of_hopper(
    elements: str, scale: str, formats: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"title: t\ntarget: h100\n{SCALES.format(a=elements, scale=scale)}")
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(path))
    advice = dict(asked(caught.value.diagnostics))
    assert (advice["operands.a.scale.format"], advice["operands.b.scale.format"]) == formats
    followed = follow(path)
    assert followed
    assert (followed.rounds, followed.fault) == (1, "")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("scale", "advice"),
    [
        ("mxfp4", {"operands.a.dtype": "bf16", "operands.a.scale": None}),
        ("nvfp4", {"target": "b200"}),  # on Hopper its epilogue would have a tensor_scale too
    ],
)
def test_4_bit_operands_become_weights_beside_bf16_or_get_a_gpu_that_has_them(
    scale: str, advice: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"title: t\ntarget: h100\n{SCALES.format(a='e2m1', scale=scale)}")
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(path))
    assert dict(asked(caught.value.diagnostics)) == advice
    followed = follow(path)
    assert followed
    assert (followed.rounds, followed.fault) == (1, "")


@pytest.mark.quick
def test_scales_that_one_operand_alone_has_are_left_out_and_get_no_format(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    operands = "operands: {a: {dtype: e4m3, scale: {format: mxfp8}}, b: {dtype: bf16}, d: {dtype: bf16}}"
    path.write_text(f"title: t\ntarget: h100\n{operands}\n")
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(path))
    (found,) = caught.value.diagnostics
    assert dict(found.advice) == {"operands.b.dtype": "e4m3", "operands.a.scale": None}
    followed = follow(path)
    assert followed
    assert (followed.rounds, followed.fault) == (1, "")


@pytest.mark.quick
def test_an_m_contiguous_a_with_scales_is_told_its_major(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    operands = SCALES.format(a="e4m3", scale="fp32_1x128").replace("e4m3,", "e4m3, major: mn,", 1)
    path.write_text(f"title: t\ntarget: h100\n{operands}")
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(path))
    (found,) = caught.value.diagnostics
    assert (found.field, found.advice) == ("operands.a.major", (("operands.a.major", "k"),))


@pytest.mark.quick
def test_a_tile_whose_sums_take_all_registers_is_named() -> None:
    text = Path(__file__).with_name("invalid") / "rules" / "accumulator_registers_rows.txt"
    assert "] tile.m: " in text.read_text()
    assert "leave -" not in text.read_text()


@pytest.mark.quick
def test_a_subtile_is_not_sent_to_and_fro_where_the_buffers_are_the_cause(tmp_path: Path) -> None:
    rest = "cluster: {m: 1, n: 2}\nwarp_specialization: {kind: cooperative}\ntile: {m: 128, n: 256, k: 64}\n"
    (found,) = told(tmp_path, f"{rest}buffering: {{epilogue: 16}}\nepilogue: {{subtile_n: 128}}\n")
    assert found.endswith("; use 256 and 1 for buffering.epilogue")


OPEN = """\
title: the planner chose the source of A and the rows that are blamed
target: h100
operands:
  a: {major: mn, dtype: e5m2}
  b: {major: k, swizzle: 128, dtype: e5m2}
  misaligned: copy
  c: {dtype: bf16}
  d: {dtype: fp16}
accumulator: fp32
tile: {n: 128, k: 128}
mma: {promote_k: 128, rows: n}
warps: {m: 1, n: 4}
buffering: {epilogue: 1, outstanding_mmas: 0}
warp_specialization: {consumers: 1}
schedule: {minor: m, width: 3, kind: persistent, splits: 4}
epilogue: {ops: [row_bias, gelu_erf], beta: -1.0}
occupancy: 1
check: {shapes: [[13, 416, 3088]]}
bench: {shapes: [[8192, 8192, 8192]]}
"""


@pytest.mark.quick
def test_where_the_planners_own_choices_are_blamed_the_advice_ends(tmp_path: Path) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(OPEN)
    followed = follow(path)
    assert followed
    assert not followed.fault


@pytest.mark.quick
def test_no_value_is_named_that_no_field_can_have(tmp_path: Path) -> None:
    (found,) = told(tmp_path, "tile: {m: 128, n: 128, k: 2147483647}\n")
    assert found.endswith("is not a power of two, Gluon's block extents are powers of two; use 64")


# --- searched fields


@pytest.mark.quick
def test_a_fault_of_searched_values_is_reported_where_they_stand(tmp_path: Path) -> None:
    (found,) = told(tmp_path, "search:\n  tile.m: [96]\n")
    assert found.startswith("5:11: error[tile-power-of-two] search.tile.m: 96 is not a power of two")
    assert found.endswith("; use [64] or [128]")


@pytest.mark.quick
def test_each_order_that_is_searched_can_be_chosen(tmp_path: Path) -> None:
    for order in ("row", "column", "grouped", "snake", "hilbert"):
        path = tmp_path / "spec.yaml"
        path.write_text(f"title: t\ntarget: h100\n{OPERANDS}search: {{schedule.order: [{order}]}}\n")
        assert plan_spec(load_spec(path)).order == order


@pytest.mark.quick
@pytest.mark.parametrize("values", ["[64, 32]", "[32, 64]"])
def test_a_tie_goes_to_what_is_chosen_without_a_search_whatever_the_list_says(
    values: str, tmp_path: Path
) -> None:
    path = tmp_path / "spec.yaml"
    rest = "tile: {m: 128, n: 128, k: 64}\n"
    path.write_text(
        f"title: t\ntarget: h100\n{OPERANDS}{rest}search: {{schedule.order: [grouped, snake, row]}}\n"
    )
    assert plan_spec(load_spec(path)).order == "snake"
    path.write_text(f"title: t\ntarget: b200\n{OPERANDS}search: {{epilogue.subtile_n: {values}}}\n")
    assert plan_spec(load_spec(path)).subtile_n == 64


# --- what is applied


@pytest.mark.quick
def test_a_change_is_applied_as_its_reader_would() -> None:
    data = {
        "check": {"shapes": [[1, 2, 3], [4, 5, 6]]},
        "search": {"tile.m": [64]},
        "epilogue": {"ops": ["a"]},
    }
    advice = (("check.shapes.1.2", 8), ("search.tile.m", (128,)), ("epilogue.ops.0", None), ("tile.k", 64))
    expected: dict[str, object] = {
        "check": {"shapes": [[1, 2, 3], [4, 5, 8]]},
        "search": {"tile.m": [128]},
        "epilogue": {"ops": []},
        "tile": {"k": 64},
    }
    assert applied(data, advice) == changed(data, advice) == expected
    assert data["search"] == {"tile.m": [64]}


@pytest.mark.quick
def test_of_a_long_list_the_last_items_go_first() -> None:
    data = {"epilogue": {"ops": [f"op {number}" for number in range(12)]}}
    advice = tuple((f"epilogue.ops.{number}", None) for number in range(1, 12))
    assert applied(data, advice) == {"epilogue": {"ops": ["op 0"]}}


@pytest.mark.quick
def test_the_page_has_the_figures_of_the_record() -> None:
    record = json.loads((ROOT / "tests/records/advice.json").read_text(encoding="utf-8"))
    assert (record["without_end"], list(record["rounds"])) == (0, ["1"])
    alone, two, *more = record["fields_changed"].values()
    page = " ".join((ROOT / "benchmarks/studies/random_specs.md").read_text(encoding="utf-8").split())
    first, last = record["numbers"]
    drawn = f"(numbers {first} to {last:,} of seed {record['seed']})"
    assert f"All {record['invalid_specs']} and all {record['random_refused_specs']:,} {drawn}" in page
    assert f"{alone:,} of them by a change of one field, {two:,} of two, {sum(more):,} of more" in page
