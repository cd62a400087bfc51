"""Plans that are frozen in a spec, compared, and warned of."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Gemmgen
from modules import EVERY_SPEC, made
from modules import SPECS as MODULE_SPECS
from ruamel.yaml import YAML
from work import calls_of

from benchmarks.harness.planning import LARGE
from gemmgen.features.rendering import render
from gemmgen.plan.decisions import frozen
from gemmgen.plan.search import MOST_CONFIGURATIONS, spread
from gemmgen.planner import plan_spec, rank, warnings
from gemmgen.planner.ledger import differences
from gemmgen.product import make
from gemmgen.spec import SpecFile, load_spec, parse_spec
from gemmgen.spec.model import spec_of, stated
from gemmgen.spec.writing import spec_text

ROOT = Path(__file__).parent.parent
pytest_plugins = ["commands"]

HEAD = "title: t\ntarget: h100\noperands:\n  a: {dtype: bf16}\n  b: {dtype: bf16}\n  d: {dtype: bf16}\n"


def written(path: Path, rest: str) -> Path:
    path.write_text(HEAD + rest)
    return path


# --- frozen


@pytest.mark.parametrize("path", EVERY_SPEC[::4], ids=lambda path: path.stem)
def test_a_frozen_spec_has_the_same_plan_and_the_same_module(path: Path, tmp_path: Path) -> None:
    source = load_spec(path)
    plan = plan_spec(source)
    again = tmp_path / path.name
    again.write_text(spec_text(frozen(source, plan)))
    found = plan_spec(load_spec(again))
    assert found == plan
    modules = {render(each, spec_name=path.name, spec_sha256=source.sha256) for each in (plan, found)}
    assert len(modules) == 1


@pytest.mark.parametrize("path", MODULE_SPECS, ids=lambda path: path.stem)
def test_a_spec_that_states_all_fields_that_the_plan_reports_has_the_same_plan(path: Path) -> None:
    """Those of ``gemmgen plan --json``: a field that is null there is left out."""
    product = made(path)
    data = stated(product.source.spec)
    data.pop("search", None)
    for field, value in json.loads(json.dumps(product.fields)).items():
        if value is None:
            continue
        *sections, name = field.split(".")
        section = data
        for step in sections:
            section = section.setdefault(step, {})
        section[name] = value
    spec = spec_of(data)
    assert spec, "a value is none of its field"
    assert plan_spec(replace(product.source, spec=spec)) == product.plan


@pytest.mark.quick
def test_the_command_prints_the_spec_of_the_plan_or_of_a_candidate(gemmgen_: Gemmgen, tmp_path: Path) -> None:
    path = written(tmp_path / "spec.yaml", "tile: {m: 128}\nwarp_specialization: {kind: cooperative}\n")
    legal = rank(load_spec(path)).legal
    for args, place in ((["--freeze"], 1), (["--freeze", 1], 1), (["--freeze", 3], 3)):
        result = gemmgen_("plan", path, *args)
        assert result.code == 0
        again = tmp_path / "again.yaml"
        again.write_text(result.stdout)
        assert plan_spec(load_spec(again)) == legal[place - 1].plan
    assert plan_spec(load_spec(path)) == legal[0].plan


@pytest.mark.quick
def test_a_frozen_spec_says_all_and_searches_nothing(gemmgen_: Gemmgen, tmp_path: Path) -> None:
    path = written(tmp_path / "spec.yaml", "search: {tile.n: [128, 256]}\n")
    (data,) = json.loads(gemmgen_("plan", path, "--freeze", "--json").stdout)["results"].values()
    assert "search" not in data
    assert set(data) >= {"tile", "mma", "warps", "cluster", "buffering", "schedule", "occupancy", "epilogue"}
    assert data["operands"]["b"] == {"dtype": "bf16", "major": "k", "swizzle": 128}


@pytest.mark.quick
def test_a_candidate_that_is_none_is_refused_in_words(gemmgen_: Gemmgen, tmp_path: Path) -> None:
    result = gemmgen_("plan", ROOT / "specs" / "h100_bf16.yaml", "--freeze", 2)
    assert (result.code, result.codes) == (1, ["no-candidate"])
    two = gemmgen_("plan", ROOT / "specs" / "h100_bf16.yaml", ROOT / "specs" / "h100_e4m3.yaml", "--freeze")
    assert two.code == 2


# --- compared


@pytest.mark.quick
def test_two_plans_are_compared_field_by_field(gemmgen_: Gemmgen, tmp_path: Path) -> None:
    one = written(tmp_path / "one.yaml", "tile: {m: 128, n: 256, k: 64}\nbuffering: {stages: 4}\n")
    two = written(tmp_path / "two.yaml", "tile: {m: 128, n: 256, k: 64}\nbuffering: {stages: 3}\n")
    found = {each.name: (each.first, each.second) for each in differences(make(one).plan, make(two).plan)}
    assert found["buffering.stages"] == (4, 3)
    sizes = found["shared memory per CTA: total"]
    assert sizes == (make(one).plan.smem_bytes, make(two).plan.smem_bytes)
    assert "tile.n" not in found
    data = json.loads(gemmgen_("diff", one, two, "--json").stdout)["results"]
    assert data["buffering.stages"] == [4, 3]
    lines = gemmgen_("diff", one, two).stdout.splitlines()
    assert lines[0].split() == [one.as_posix(), two.as_posix()]
    assert "buffering.stages 4 3" in [" ".join(line.split()) for line in lines]


@pytest.mark.quick
def test_the_same_plan_twice_has_no_difference(gemmgen_: Gemmgen) -> None:
    path = ROOT / "specs" / "h100_bf16.yaml"
    assert gemmgen_("diff", path, path, "--json").results == {}


@pytest.mark.quick
def test_a_spec_that_is_refused_has_no_difference(gemmgen_: Gemmgen, tmp_path: Path) -> None:
    wrong = written(tmp_path / "wrong.yaml", "tile: {k: 8}\n")
    result = gemmgen_("diff", wrong, ROOT / "specs" / "h100_bf16.yaml")
    assert result.code == 1
    assert not result.stdout
    assert "error[mma-k] tile.k" in result.stderr


# --- warned of


def warned(path: Path) -> list[tuple[str, str | None, int | None, int | None]]:
    """The code, the field and the place of each warning of a spec."""
    source = load_spec(path)
    found = warnings(source, plan_spec(source))
    return [(each.code, each.field, each.line, each.column) for each in found]


@pytest.mark.quick
def test_few_waves_and_idle_sms_are_warned_of(gemmgen_: Gemmgen, tmp_path: Path) -> None:
    rest = "tile: {m: 128, n: 256, k: 64}\nbench: {shapes: [[256, 4096, 4096], [8192, 8192, 8192]]}\n"
    # 2 x 16 tiles for 132 programs.
    found = warned(written(tmp_path / "few.yaml", rest))
    assert found == [("few-waves", "bench.shapes.0", 8, 18)]
    rest = "cluster: {m: 2, n: 2}\nwarp_specialization: {kind: cooperative}\n"
    assert warned(written(tmp_path / "idle.yaml", rest)) == [("idle-sms", "cluster.m", 7, 14)]
    result = gemmgen_("plan", tmp_path / "idle.yaml")
    assert (result.code, result.codes) == (0, ["idle-sms"])
    assert {"30", "12", "132"} <= {*result.stderr.split()}
    assert warned(ROOT / "specs" / "h100_bf16.yaml") == []


# --- the order of what is searched

SEARCHES: tuple[tuple[str, dict[str, tuple[object, ...]]], ...] = (
    ("h100", {"schedule.width": (1, 16)}),
    ("h100", {"schedule.width": (2, 64, 4)}),
    ("h100", {"schedule.order": ("grouped", "hilbert"), "schedule.minor": ("m", "n")}),
    ("h100", {"warp_specialization.registers.producer": (24, 56), "epilogue.subtile_n": (32, 64)}),
    ("h100", {"mma.swap_ab": (False, True), "tile.n": (64, 128)}),
    ("b200", {"schedule.kind": ("launch_control", "persistent"), "schedule.width": (4, 16)}),
)
"""Fields of which the cost tells none or only some apart; the first ones are without the planner's choice."""


def permuted(search: dict[str, tuple[object, ...]]) -> Iterator[dict[str, list[object]]]:
    """Yield a search with its fields, and the values of each, in every order."""
    for fields in itertools.permutations(search):
        for values in itertools.product(*(itertools.permutations(search[field]) for field in fields)):
            yield {field: list(found) for field, found in zip(fields, values, strict=True)}


@pytest.mark.parametrize(("target", "search"), SEARCHES, ids=lambda value: str(value)[:40])
def test_the_order_of_a_search_decides_nothing(target: str, search: dict[str, tuple[object, ...]]) -> None:
    operand = {"dtype": "bf16"}
    data: dict[str, object] = {"title": "t", "target": target, "operands": dict.fromkeys("abd", operand)}
    data |= {
        "tile": {"m": 64, "k": 64},
        "cluster": {"m": 1, "n": 1},
        "bench": {"shapes": [[4096, 2048, 1024]]},
    }
    specs = [spec_of({**data, "search": each}) for each in permuted(search)]
    assert len(specs) == math.prod(
        math.factorial(len(values)) for values in search.values()
    ) * math.factorial(len(search))
    sources = [SpecFile.of(spec) for spec in specs if spec]
    assert len({plan_spec(source) for source in sources}) == 1
    rankings = [rank(source) for source in (sources[0], sources[-1])]
    assert len({tuple(found.plan for found in ranking.legal) for ranking in rankings}) == 1
    assert rankings[0].legal[0].plan == plan_spec(sources[0])


def test_of_values_that_tie_the_nearest_to_the_planners_own_is_planned(tmp_path: Path) -> None:
    """Ping-pong kernels have groups of 8 tiles: 16 is one factor of two away from that, and 1 three."""

    def width(values: str) -> int:
        rest = f"warp_specialization: {{kind: ping_pong}}\nsearch: {{schedule.width: {values}}}\n"
        return plan_spec(load_spec(written(tmp_path / "width.yaml", rest))).width

    assert width("[1, 16]") == width("[16, 1]") == 16
    assert width("[1, 2, 64]") == 2
    assert width("[64, 32, 1, 8]") == 8
    assert width("[4, 16]") == width("[16, 4]") == 4  # as far from 8: the smaller one


def test_a_search_that_the_cost_cannot_rank_is_warned_of(tmp_path: Path) -> None:
    rest = "search: {tile.n: [128, 256], schedule.width: [4, 16], buffering.stages: [4, 5]}\n"
    found = warned(written(tmp_path / "width.yaml", rest))
    assert found == [("unranked-search", "search.schedule.width", 7, 46)]
    # Buffers of D leave less memory for stages, which the cost knows unless the stages are stated.
    rest = "search: {epilogue.subtile_n: [32, 64]}\n"
    assert warned(written(tmp_path / "stores.yaml", rest)) == []
    ((code, field, *_),) = warned(written(tmp_path / "stores.yaml", f"buffering: {{stages: 3}}\n{rest}"))
    assert (code, field) == ("unranked-search", "search.epilogue.subtile_n")
    assert warned(written(tmp_path / "one.yaml", "search: {schedule.width: [4]}\n")) == []


# --- large searches


def large(tmp_path: Path, **rest: object) -> Path:
    path = tmp_path / "large.yaml"
    search = {name: values for name, values in LARGE.items() if name.partition(".")[0] not in rest}
    path.write_text(HEAD + f"search: {json.dumps(search)}\n" + f"{json.dumps(rest)[1:-1]}\n" * bool(rest))
    return path


@pytest.mark.parametrize("rest", [{}, {"schedule": {"width": 5000}}], ids=["legal", "refused"])
def test_of_a_large_search_ten_thousand_combinations_are_tried_and_it_is_warned(
    gemmgen_: Gemmgen, rest: dict[str, object], tmp_path: Path
) -> None:
    path = large(tmp_path, **rest)
    result = gemmgen_("plan", path)
    if rest:
        (found,) = (line for line in result.stderr.splitlines() if "error[" in line)
        assert "error[group-width] schedule.width" in found
        assert found.endswith("; use at most 4096")
    else:
        assert {"52,488", "10,000"} <= {*result.stderr.split()}


@pytest.mark.quick
def test_a_stated_spec_is_planned_without_a_search() -> None:
    source = load_spec(ROOT / "specs" / "h100_bf16.yaml")
    assert calls_of(lambda: plan_spec(source)) < 5_000  # an open one takes 220,000


@pytest.mark.quick
def test_a_sample_has_the_first_combination_and_each_once() -> None:
    assert list(spread(7, 10)) == list(range(7))
    found = spread(39_366, MOST_CONFIGURATIONS)
    assert len(set(found)) == MOST_CONFIGURATIONS
    assert found[0] == 0
    gaps = {after - before for before, after in itertools.pairwise(found)}
    assert max(gaps) < 16


@pytest.mark.quick
@pytest.mark.parametrize("word", ["true", "False", "null", "a.b", "e4m3"])
def test_a_word_is_read_as_it_was_written(word: str) -> None:
    """`title: true` would be a boolean, which no title is."""
    operands = {name: {"dtype": "bf16"} for name in "abd"}
    source = parse_spec(spec_text({"title": word, "target": "h100", "operands": operands}).encode(), "words")
    assert source.spec.title == word


@pytest.mark.quick
def test_plain_data_are_written_in_one_line_a_section() -> None:
    data = {"title": 'a "b": c', "tile": {"m": 1}, "l": [[1, 2], ["x", 1.5]], "ops": [{"f": {"x": 1}}]}
    assert spec_text(data) == (
        'title: "a \\"b\\": c"\ntile: {m: 1}\nl: [[1, 2], [x, 1.5]]\nops: [{f: {x: 1}}]\n'
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    "title", ["true", "null", "1", "1e3", "a: b", "# a", "ä \u2028 \x85", "x" * 300, "it's", "~"]
)
def test_text_is_written_so_that_it_stays_text(title: str) -> None:
    operands = {"a": {"dtype": "bf16"}}
    read = YAML(typ="safe", pure=True).load(spec_text({"title": title, "operands": operands}))  # pyright: ignore[reportUnknownMemberType]
    assert read == {"title": title, "operands": operands}


@pytest.mark.quick
def test_operands_have_a_line_each_unless_the_caller_says_otherwise() -> None:
    data = {"title": "t", "operands": {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}}}
    assert spec_text(data) == "title: t\noperands:\n  a: {dtype: bf16}\n  b: {dtype: bf16}\n"
    assert spec_text(data, apart=()) == "title: t\noperands: {a: {dtype: bf16}, b: {dtype: bf16}}\n"
