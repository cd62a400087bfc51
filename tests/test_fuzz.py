"""Random specs beside the compiler and the simulator: what is drawn, what is found, what is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Gemmgen, program

from gemmgen.build import lowered_of, settle
from gemmgen.errors import GemmgenError
from gemmgen.hardware.gpus import round_up
from gemmgen.plan.fix import at_least
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Finding, Rule, rule
from gemmgen.plan.wgmma.bounds import expected_producer_registers, expected_registers, most_consumer_registers
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.planner import FAMILIES, attempted, families, plan_spec
from gemmgen.spec import SpecFile, load_spec
from tools.fuzz import draft, judge, tables
from tools.fuzz.__main__ import main
from tools.fuzz.judge import Outcome
from tools.fuzz.run import Judged, Report, Run, fuzz
from tools.fuzz.run import recorded as read_record
from tools.fuzz.tables import Values

TARGETS = tuple(tables.TABLES)
SPECS = 6
ROOT = Path(__file__).parents[1]
ORDINARY: Values = {
    "title": "an ordinary spec",
    "target": "h100",
    "operands.a.dtype": "bf16",
    "operands.b.dtype": "bf16",
    "operands.c.dtype": "bf16",
    "operands.d.dtype": "bf16",
    "tile.m": 256,
    "tile.n": 64,
    "tile.k": 128,
    "cluster.m": 1,
    "cluster.n": 2,
    "warp_specialization.kind": "ping_pong",
    "epilogue.ops": ["residual", "silu"],
}
SMALL: Values = {
    "title": "a small kernel",
    "target": "h100",
    "operands.a.dtype": "bf16",
    "operands.b.dtype": "bf16",
    "operands.d.dtype": "bf16",
    "tile.m": 64,
    "tile.n": 16,
    "tile.k": 16,
    "warp_specialization.kind": "none",
    "schedule.kind": "tiled",
}


# --- what is drawn


@pytest.mark.nightly
@pytest.mark.parametrize("target", TARGETS)
def test_a_seed_makes_one_spec_which_is_legal_and_one_that_is_refused(target: str) -> None:
    refusals = legal = 0
    for number in range(SPECS):
        values, refused = draft.drawn(target, 0, number)
        if number == 0:
            assert (values, refused) == draft.drawn(target, 0, number)
        *_, last = draft.drafts(target, 0, number)
        assert last.values == values
        if not last.refused:
            legal += 1
            plan_spec(draft.spec_of(values))
        if refused is not None:
            refusals += 1
            with pytest.raises(GemmgenError):
                plan_spec(draft.spec_of(refused))
    assert refusals >= SPECS // 2
    assert legal >= SPECS - 1


@pytest.mark.quick
def test_seeds_and_numbers_make_specs_of_their_own() -> None:
    texts = {
        draft.spec_text(draft.drawn("sm100", seed, number)[0]) for seed in range(3) for number in range(3)
    }
    assert len(texts) == 9


@pytest.mark.check
def test_specs_of_one_kind_have_its_fields_and_none_that_it_leaves_out() -> None:
    own = dict(tables.TABLES["sm90"][1])["gated"]
    stated = {path for path, values in own.items() if values}
    gated = 0
    for number in range(2 * SPECS):
        first, *_, last = draft.drafts("sm90", 0, number, "gated")
        assert stated <= first.values.keys()
        assert not last.values.keys() & (own.keys() - stated)
        gated += "epilogue.accumulators" in last.values and not last.refused
    assert gated > SPECS


@pytest.mark.quick
def test_what_neither_sees_are_rules() -> None:
    known = {each.id for family in FAMILIES.values() for each in family.rules}
    assert judge.UNSEEN.keys() <= known


# --- what is found


def test_the_ordinary_spec_compiles_with_consumers_of_two_warpgroups() -> None:
    plan = plan_spec(draft.spec_of(ORDINARY))
    assert isinstance(plan, WgmmaKernel)
    assert (plan.warps_m, plan.accumulator_registers, plan.consumer_registers) == (8, 64, 104)
    assert judge.judged(ORDINARY, simulated=False) == Outcome("accepted", "lower")


def without(monkeypatch: pytest.MonkeyPatch, *rules: str) -> None:
    """Let the planner forget rules of Hopper kernels."""
    family = FAMILIES["wgmma"]
    kept = judge._rules_without(family, frozenset(rules))  # pyright: ignore[reportPrivateUsage]
    with_fewer = replace(family, rules=kept)
    monkeypatch.setattr(families, "FAMILIES", {**FAMILIES, "wgmma": with_fewer})


def test_what_the_compiler_alone_refuses_is_counted_and_is_no_finding() -> None:
    found = judge.judged({**ORDINARY, "warps.m": 4}, simulated=False)
    assert (found.verdict, found.stage, found.rules) == ("refused", "lower", ("compiler-registers",))
    assert found.finding is None
    assert "spill" in found.fault
    report = Report(Run("sm90", 0), (Judged(1, found),))
    assert report.counts == {"refused: refused by the compiler": 1}


def test_a_rule_that_is_missing_is_found_by_what_the_compiler_does(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "mma-n")
    found = judge.judged({**SMALL, "mma.n": 24}, simulated=False)
    assert found.finding == "accepted, but not compiled as planned"
    assert "Triton refuses the kernel" in found.fault


@rule("no-narrow-tiles")
def no_narrow_tiles(plan: Kernel) -> Iterator[Finding]:
    """Tiles have at least 32 columns, for no reason."""
    if plan.cta_tile_n < 32:
        yield Finding("tile.n", "a narrow tile", "none is", at_least(32))


def forbidding(monkeypatch: pytest.MonkeyPatch, rule: Rule[Kernel]) -> None:
    family = FAMILIES["wgmma"]
    stricter = replace(family, rules=(*family.rules, rule))
    monkeypatch.setattr(families, "FAMILIES", {**FAMILIES, "wgmma": stricter})


def test_a_rule_without_a_reason_is_found_by_what_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    forbidding(monkeypatch, no_narrow_tiles)
    found = judge.judged(SMALL, simulated=False)
    assert found == Outcome("refused", "simulate", ("no-narrow-tiles",))
    assert found.finding == "refused by no-narrow-tiles, but fine"


def test_a_rule_whose_reason_is_unseen_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    forbidding(monkeypatch, no_narrow_tiles)
    monkeypatch.setitem(judge.UNSEEN, "no-narrow-tiles", "they look bad")
    found = judge.judged(SMALL, simulated=False)
    assert (found.stage, found.finding) == ("simulate", None)
    report = Report(Run("sm90", 0), (Judged(1, found),))
    assert report.unseen == {"no-narrow-tiles": 1}
    assert "       1  refused by no-narrow-tiles: they look bad" in list(report.lines())


@pytest.mark.parametrize(
    ("change", "stage", "fault"),
    [
        ({"mma.n": 24}, "lower", "Triton refuses the kernel"),  # no power of two: the compiler is killed
        ({"operands.a.scale": {"format": "mxfp8"}}, "plan", "no kernel has such a field"),
        ({"tile.k": 2**31 - 1}, "plan", ""),
    ],
)
def test_what_is_refused_with_reason_fails_without_its_rules(change: Values, stage: str, fault: str) -> None:
    found = judge.judged({**SMALL, **change}, simulated=False)
    assert (found.verdict, found.stage, found.finding) == ("refused", stage, None)
    assert fault in found.fault


@pytest.mark.quick
def test_a_refusal_without_a_reason_is_a_finding() -> None:
    assert Outcome("refused", "simulate").finding == "refused by no rule, but fine"
    assert Outcome("refused", "lower", fault="registers spill").finding is None


@pytest.mark.quick
def test_the_fewest_registers_are_those_that_are_expected_to_be_taken() -> None:
    plan = plan_spec(draft.spec_of({**ORDINARY, "cluster.n": 1, "epilogue.ops": [], "tile.k": 64}))
    fewest = judge.fewest_registers(plan)
    assert isinstance(plan, WgmmaKernel)
    assert isinstance(fewest, WgmmaKernel)
    assert fewest.consumer_registers == round_up(expected_registers(plan), 8)
    assert fewest.producer_registers == expected_producer_registers(plan)


@pytest.mark.quick
def test_a_finding_is_left_with_the_fields_that_make_it_one() -> None:
    values: Values = {**ORDINARY, "schedule.order": "snake", "buffering.stages": 3}
    small = judge.smallest(values, lambda found: found.get("tile.k") == 128 and "schedule.order" in found)
    assert {"tile.k", "schedule.order"} == small.keys() - {"title", "target"} - {*tables.REQUIRED}


@pytest.mark.quick
@pytest.mark.parametrize("open_field", [{"operands.a.major": "mn"}, {"dependent_launch": {"early": "a"}}])
@pytest.mark.parametrize("rows", [1, 8, 2**31 - 1])
def test_a_tile_of_any_rows_is_planned_or_refused_in_words(rows: int, open_field: Values) -> None:
    """Registers are estimated of tiles that no rule has seen: of one row, two consumers have none each."""
    values = {**ORDINARY, "tile.m": rows, "schedule.splits": 3, **open_field}
    found = attempted(draft.spec_of(values))
    assert not isinstance(found, Kernel)
    assert found


# --- what was measured of registers

MEASURED = json.loads((ROOT / "benchmarks" / "registers" / "needed.json").read_text())["kernels"]


def asked_of(row: dict[str, Any]) -> tuple[int, int]:
    """Return what a measured kernel is expected to take, and the most that it can have."""
    (m, n, k), (cluster_m, cluster_n) = row["tile"], row["cluster"]
    values: Values = {
        **{name: value for name, value in ORDINARY.items() if not name.startswith("operands.c")},
        "tile.m": m,
        "tile.n": n,
        "tile.k": k,
        "cluster.m": cluster_m,
        "cluster.n": cluster_n,
        "warp_specialization.kind": row["kind"],
        "epilogue.ops": row["ops"],
        "epilogue.subtile_n": n // row["subtiles"],
        "warps.m": 4,
    }
    if "residual" in row["ops"]:
        values["operands.c.dtype"] = "bf16"
    rules = ("accumulator-registers", "consumer-registers", "compiler-registers")
    plan = judge.plan_without(draft.spec_of(values), rules)
    assert isinstance(plan, WgmmaKernel)
    plan = replace(plan, producer_registers=40)
    return expected_registers(plan), most_consumer_registers(plan)


@pytest.mark.quick
def test_what_is_expected_is_close_to_what_was_measured() -> None:
    """Of 10 kernels 9 take no more than is expected; those that spill in any case take more than there is."""
    missed: list[dict[str, Any]] = []
    for row in MEASURED:
        expected, most = asked_of(row)
        enough = expected > most if row["needed"] is None else round_up(expected, 8) >= row["needed"]
        missed += [] if enough else [row]
    assert len(missed) <= len(MEASURED) / 10, missed


# --- the runs on record

RUNS: list[dict[str, Any]] = json.loads((ROOT / "tests" / "records" / "fuzz.json").read_text())


UNSEEN: list[dict[str, Any]] = json.loads((ROOT / "tests" / "records" / "fuzz_unseen.json").read_text())
"""Runs of seeds that no repair had seen when they ran."""
SPILLED = [
    {**found, "target": run["target"], "seed": run["seed"], "minimum": run["minimum"]}
    for run in UNSEEN
    for found in run["findings"]
    if found["verdict"] == "accepted"
]
REPAIRED: list[dict[str, Any]] = [
    *json.loads((ROOT / "tests" / "records" / "fuzz_repaired.json").read_text()),
    *(found for found in SPILLED if "stream_k" not in found["spec"]),
]
"""What the rules accepted in earlier runs, and broke, without stream-K, which no spec can state any more."""
MOST_PASSED_OVER = 4
"""Plans of one spec that the compiler may refuse here."""
RULE_IDS = {each.id for family in FAMILIES.values() for each in family.rules}


@pytest.mark.quick
def test_nothing_on_record_was_accepted_and_broke() -> None:
    assert {found["verdict"] for run in RUNS for found in run["findings"]} == {"refused"}


@pytest.mark.nightly
@pytest.mark.parametrize("broke", REPAIRED, ids=lambda broke: f"{broke['seed']}-{broke['number']}")
def test_what_broke_in_an_earlier_run_is_planned_otherwise_or_refused(
    broke: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's word is asked for: a spec that is accepted ends at a kernel that does not spill.

    A user's spec is given up after more plans than here, where each takes up to ten seconds.
    """
    monkeypatch.setattr("gemmgen.build.MOST_PASSED_OVER", MOST_PASSED_OVER)
    source = recorded(broke, tmp_path)
    try:
        settled = settle(source, lowered_of, gradients=False)
    except GemmgenError as error:
        codes, spilled = {found.code for found in error.diagnostics}, 0
    else:
        codes, spilled = set[str](), settled.results[0].resources.spilled_bytes
    assert codes <= RULE_IDS | {"registers-given-up"}
    assert spilled == 0


def recorded(found: dict[str, Any], tmp_path: Path) -> SpecFile:
    """Return a finding's spec, as one that was read."""
    path = tmp_path / "random_spec.yaml"
    path.write_text(found["spec"])
    return load_spec(path)


@pytest.mark.quick
def test_the_page_tells_what_seeds_find_that_no_repair_has_seen() -> None:
    accepted = 0
    page = " ".join((ROOT / "benchmarks/studies/random_specs.md").read_text(encoding="utf-8").split())
    for run in UNSEEN:
        broke = sum(found["verdict"] == "accepted" for found in run["findings"])
        fine = sum(count for end, count in run["counts"].items() if end.startswith("accepted"))
        assert f"{broke} of {fine:,} of seed {run['seed']}" in page
        accepted += fine
    specs, (*others, last) = sum(run["specs"] for run in UNSEEN), [str(run["seed"]) for run in UNSEEN]
    assert f"of {specs:,} Hopper specs of the seeds {', '.join(others)} and {last}" in page
    assert f"{accepted:,} were accepted, and {len(SPILLED)} of them spilled or were serialized" in page
    assert not {run["seed"] for run in UNSEEN} & {run["seed"] for run in RUNS}


@pytest.mark.quick
def test_at_most_one_spec_of_a_hundred_on_record_is_refused_but_fine() -> None:
    fine = sum(found["verdict"] == "refused" for run in RUNS for found in run["findings"])
    assert fine <= sum(run["specs"] for run in RUNS) / 100


@pytest.mark.quick
def test_the_page_tells_what_ran() -> None:
    page = " ".join((ROOT / "benchmarks/studies/random_specs.md").read_text(encoding="utf-8").split())
    for run in RUNS:
        least = ", with the fewest registers" if run["minimum"] else ""
        assert (
            f"| {run['target']}{least} | {run['seed']} | {run['specs']:,} | {len(run['findings'])} |" in page
        )


# --- a run and its record

RUN = Run("sm90", 7)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let every third spec be a finding; return a file with a line for each spec that was looked at."""
    looked = tmp_path / "looked"

    def examine(run: Run, number: int) -> Judged:
        with looked.open("a") as file:
            file.write(f"{number}\n")
        fault = "registers spill: 8 bytes" if number % 3 == 0 else ""
        return Judged(number, Outcome("accepted", "lower", fault=fault), "title: x\n" if fault else "")

    monkeypatch.setattr("tools.fuzz.run.examined", examine)
    return looked


@pytest.mark.quick
def test_a_run_goes_on_where_it_was_ended(examined: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    first = list(fuzz(RUN, 3, record=record))
    with record.open("a") as file:
        file.write('{"target": "sm90", "se')  # it was killed here
    both = list(fuzz(RUN, 6, record=record, processes=2))
    assert sorted(examined.read_text().split()) == list("012345")
    assert sorted(one.number for one in both) == [0, 1, 2, 3, 4, 5]
    assert {one.number: one for one in both}[0] == {one.number: one for one in first}[0]
    assert len(list(fuzz(RUN, 6, record=record))) == 6
    assert len(examined.read_text().split()) == 6


@pytest.mark.quick
def test_a_record_holds_several_runs_apart(examined: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    for run in (RUN, replace(RUN, seed=8), replace(RUN, minimum=True)):
        assert len(list(fuzz(run, 2, record=record))) == 2
    assert len(examined.read_text().split()) == 6


@pytest.mark.quick
def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "notes.txt"
    record.write_text("a line\nand another\n")
    with pytest.raises(GemmgenError, match=r"notes.txt:1: error\[bad-record\]: this line is of no record"):
        read_record(RUN, record)


@pytest.mark.quick
def test_a_process_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(run: Run, number: int) -> Judged:
        raise SystemExit

    monkeypatch.setattr("tools.fuzz.run.examined", die)
    (found,) = fuzz(RUN, 1)
    assert found.outcome.finding == "accepted, but not clean"
    assert found.outcome.fault.startswith("the process is lost: ")
    assert found.text == draft.spec_text(draft.drawn("sm90", 7, 0)[0])


@pytest.mark.quick
def test_a_report_counts_and_shows_the_findings(examined: Path) -> None:
    lines = [*Report(RUN, tuple(fuzz(RUN, 4))).lines()]
    assert [line.split()[0] for line in lines if line.startswith(" " * 7)] == ["2", "2"]
    assert [line.split(":")[0] for line in lines if ": " in line and line.startswith("finding")] == [
        "finding in spec 0",
        "finding in spec 3",
    ]
    assert lines.count("  registers spill: 8 bytes") == lines.count("    title: x") == 2


@pytest.fixture
def fuzz_(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gemmgen:
    """Runs the command in this process."""
    return program("fuzz", main, capsys, monkeypatch)


@pytest.mark.nightly
def test_the_command_draws_compiles_and_reports(fuzz_: Gemmgen, tmp_path: Path) -> None:
    arguments = ("--target", "sm90", "--specs", "2", "--seed", "5", "--simulated", "0", "--processes", "1")
    ran = fuzz_(*arguments, "--record", str(tmp_path / "record.jsonl"), "--json")
    assert ran.code == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)["results"]
    assert report["counts"] == {"accepted: compiled as planned": 2}
    assert (report["specs"], report["findings"]) == (2, [])


@pytest.mark.quick
def test_an_unknown_target_is_wrong_usage(fuzz_: Gemmgen) -> None:
    ran = fuzz_("--target", "sm80")
    assert (ran.code, ran.stdout) == (2, "")
    assert "`sm80`" in ran.stderr


@pytest.mark.quick
def test_an_unknown_kind_is_wrong_usage(fuzz_: Gemmgen) -> None:
    ran = fuzz_("--target", "sm100", "--kind", "gated")
    assert (ran.code, ran.stdout) == (2, "")
    assert "`gated`" in ran.stderr
