"""The table of what the compiler says of registers, and how a plan, a build and a check use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest
from hopper import hopper
from modules import ROOT

from gemmgen import product
from gemmgen.build import build, lowered_of, settle
from gemmgen.compiled_advice import MOST_ADVICE, with_compiled_advice
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.lower import Lowered, Resources, ShortageError
from gemmgen.plan.decisions import FIELDS
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import altered
from gemmgen.plan.verdicts import (
    SHIPPED,
    Table,
    Verdict,
    alike_digests,
    cause_digest,
    kernel_digest,
    knowing,
    read_table,
    shipped,
    standing_of,
    table_text,
    verdict_of,
)
from gemmgen.planner import applied, plan_spec, rank, warnings
from gemmgen.problem.epilogue import Listed
from gemmgen.product import Product, make, make_as_built
from gemmgen.spec import SpecFile, load_spec, parse_spec
from gemmgen.spec.model import stated

OPEN = b"""title: all is open
target: h100
operands:
  a: {dtype: bf16}
  b: {dtype: bf16}
  d: {dtype: bf16}
"""
SHORT = ROOT / "tests" / "invalid" / "rules" / "compiler_registers_steps.yaml"
SPILLS = Verdict(168, 24)
REFUSED = sorted(SHORT.parent.glob("compiler_registers*.yaml"))
COMMITTED = sorted(
    path
    for pattern in ("specs/*.yaml", "tests/pairs/specs/*.yaml", "libraries/*/specs/*.yaml")
    for path in ROOT.glob(pattern)
)


def source_of(text: bytes = OPEN) -> SpecFile:
    return parse_spec(text, "open")


# --- the digest


@pytest.mark.quick
@pytest.mark.parametrize(
    ("stem", "digest"), [("h100_bf16", "5dd7bf4bd109a857"), ("b200_mxfp8", "49dc31dc8f796918")]
)
def test_the_digest_of_a_kernel_is_always_the_same(stem: str, digest: str) -> None:
    """Another one would make a stranger of each kernel in the table."""
    assert kernel_digest(make(ROOT / "specs" / f"{stem}.yaml").plan) == digest


@pytest.mark.quick
def test_each_decision_and_the_problem_change_the_digest_and_a_title_does_not() -> None:
    plan = plan_spec(source_of())
    others = [
        altered(plan, **{name: value + 1 if isinstance(value, int) else f"{value} other"})
        for name in FIELDS.values()
        if name not in ("early_operand", "trigger") and (value := getattr(plan, name, None)) is not None
    ]
    digests = {kernel_digest(each) for each in (plan, *others)}
    assert len(digests) == len(others) + 1 > 20
    titled = replace(plan, request=replace(plan.request, title="another title", bench_shapes=((64, 64, 64),)))
    assert kernel_digest(titled) == kernel_digest(plan)
    negated = replace(
        plan.request, matmul=replace(plan.problem, epilogue=Listed(alpha=-1.0).lowered(c=False))
    )
    assert kernel_digest(replace(plan, request=negated)) not in digests


@pytest.mark.quick
def test_an_h100_and_an_h200_have_one_code_and_one_digest() -> None:
    text = (ROOT / "specs" / "h100_bf16.yaml").read_bytes()
    digests = {kernel_digest(plan_spec(source_of(text.replace(b"h100", gpu)))) for gpu in (b"h100", b"h200")}
    assert len(digests) == 1


# --- the table


@pytest.mark.quick
def test_the_shipped_table_is_as_it_is_written() -> None:
    assert SHIPPED.read_text() == table_text(shipped())
    assert shipped().triton.startswith("3.9")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: EOF while parsing an object at line 1 column 1"),
        ('{"triton": "3.9.0"}', "is missing"),
        ('{"triton": "3.9.0", "kernels": {"12": [1, 0, []]}}', "must be 16 hexadecimal digits, not"),
        (
            '{"triton": "3.9.0", "kernels": {"0123456789abcdef": [1, 0]}}',
            'kernels."0123456789abcdef".2: is missing',
        ),
    ],
)
def test_another_file_is_no_table(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "verdicts.json").write_text(text)
    with pytest.raises(GemmgenError, match="bad-verdicts") as caught:
        read_table(tmp_path / "verdicts.json")
    assert message in str(caught.value)


@pytest.mark.quick
def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = Table("3.9.0", {"b" * 16: Verdict(168, 24), "a" * 16: Verdict(96, 0, ("C7512",))})
    (tmp_path / "verdicts.json").write_text(table_text(table))
    assert read_table(tmp_path / "verdicts.json") == table


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_the_kernels_of_every_committed_spec_are_verified(path: Path) -> None:
    for each in make(path).each:
        assert str(standing_of(each.plan)) == f"verified (Triton {shipped().triton})"


# --- the planner


@pytest.mark.quick
def test_a_plan_is_predicted_until_its_verdict_is_known() -> None:
    plan = plan_spec(source_of(OPEN + b"tile: {m: 128, n: 32, k: 256}\nbuffering: {stages: 2}\n"))
    assert verdict_of(plan) is None
    assert str(standing_of(plan)) == "predicted"
    with knowing({kernel_digest(plan): Verdict(168, 0)}):
        assert standing_of(plan).state == "verified"
    assert str(standing_of(plan)) == "predicted"


@pytest.mark.check
def test_a_kernel_that_is_known_to_spill_is_passed_over() -> None:
    source = source_of()
    first = plan_spec(source)
    with knowing({kernel_digest(first): SPILLS}):
        second = plan_spec(source)
        assert rank(source).legal[0].plan == second != first


@pytest.mark.quick
def test_a_spec_that_leaves_nothing_open_is_refused_with_the_numbers() -> None:
    text = (ROOT / "specs" / "h100_bf16.yaml").read_bytes()
    plan = plan_spec(source_of(text))
    digests: dict[str, Verdict] = {}
    found: tuple[Diagnostic, ...] = ()
    for _ in range(40):  # other ways to store D, and other registers of roles, that the spec leaves open
        with knowing(digests):
            try:
                digests[kernel_digest(plan_spec(source_of(text)))] = SPILLS
            except GemmgenError as error:
                found = error.diagnostics
                break
    else:
        pytest.fail("the spec is never refused")
    assert kernel_digest(plan) in digests
    (one,) = found
    assert one.code == "compiler-registers"
    assert "24 bytes per thread spill as Triton 3.9.0 compiles this kernel; use " in one.message
    assert (one.line, one.column) == source_of(text).locate(one.field or "")


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.stem)
def test_what_spills_ends_at_a_kernel_that_does_not_once_it_is_changed_as_it_is_told(path: Path) -> None:
    source = load_spec(path)
    with pytest.raises(GemmgenError) as caught:
        plan_spec(source)
    (found,) = caught.value.diagnostics
    changed = json.dumps(applied(stated(source.spec), found.advice)).encode()
    assert settle(source_of(changed), lowered_of).results[0].resources.spilled_bytes == 0


# --- a build


def refusing(count: int) -> Callable[[Product], Kernel]:
    """Return what refuses as many kernels as the compiler would."""
    seen: list[str] = []

    def prove(each: Product) -> Kernel:
        seen.append(kernel_digest(each.plan))
        if len(seen) <= count:
            raise ShortageError([Diagnostic("open.yaml", "plan-differs", "registers spill")], SPILLS)
        return each.plan

    return prove


@pytest.mark.check
def test_the_next_plan_is_proposed_where_the_compiler_refuses_one() -> None:
    settled = settle(source_of(), refusing(2))
    assert settled.results == (settled.product.plan,)
    first, second = settled.product.passed_over
    assert first.kernel == kernel_digest(plan_spec(source_of())) != second.kernel
    assert str(first) == f"{first.label}: 24 bytes per thread spill"
    assert settle(source_of(), refusing(0)).product.passed_over == ()


SERIALIZED = Verdict(168, 0, ("C7514",))


@pytest.mark.quick
def test_what_a_refusal_is_put_down_to_leaves_out_what_registers_hardly_depend_on() -> None:
    plan = hopper(plan_spec(source_of()))
    threads, mmas = alike_digests(plan)
    assert (cause_digest(plan, SPILLS), cause_digest(plan, SERIALIZED)) == (threads, mmas)
    alike = altered(plan, stages=plan.stages - 1, order="row", cluster_m=3 - plan.cluster_m)
    assert alike_digests(alike) == (threads, mmas)
    assert kernel_digest(alike) != kernel_digest(plan)
    smaller = altered(plan, cta_tile_n=plan.cta_tile_n // 2)
    assert alike_digests(smaller)[0] != threads
    assert alike_digests(smaller)[1] == mmas
    drained = altered(plan, outstanding_mmas=1 - plan.outstanding_mmas)
    assert not {*alike_digests(drained)} & {threads, mmas}


@pytest.mark.quick
@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("verdict", [SPILLS, SERIALIZED], ids=["spills", "serialized"])
def test_no_kernel_is_compiled_to_which_the_cause_of_a_refusal_applies(verdict: Verdict) -> None:
    """Of a compiler that refuses the first cause for good, one kernel is compiled for it."""
    first = plan_spec(source_of())
    cause = cause_digest(first, verdict)
    compiled: list[str] = []

    def prove(each: Product) -> Kernel:
        compiled.append(cause_digest(each.plan, verdict))
        if compiled[-1] == cause:
            raise ShortageError([Diagnostic("open.yaml", "plan-differs", "registers")], verdict)
        return each.plan

    settled = settle(source_of(), prove)
    assert compiled.count(cause) == 1
    assert len(compiled) == 2
    assert [each.cause for each in settled.product.passed_over] == [cause]


@pytest.mark.quick
def test_where_a_cause_leaves_no_kernel_each_other_one_is_compiled() -> None:
    """The cause is a likely one: a spec whose kernels all share it is not refused by it."""
    text = (
        OPEN
        + b"""tile: {m: 128, n: 128, k: 64}
warp_specialization: {kind: cooperative, consumers: 2, registers: {producer: 24, consumer: 240}}
buffering: {outstanding_mmas: 0}
epilogue: {subtile_n: 64}
schedule: {kind: persistent}
"""
    )
    settled = settle(source_of(text), refusing(1))
    (passed,) = settled.product.passed_over
    assert passed.cause is None
    assert cause_digest(settled.product.plan, SPILLS) == cause_digest(plan_spec(source_of(text)), SPILLS)


@pytest.mark.quick
def test_a_warning_tells_a_plan_that_is_expected_to_spill() -> None:
    source = source_of(
        OPEN
        + b"""tile: {m: 128, n: 256, k: 64}
warp_specialization: {kind: cooperative, consumers: 2, registers: {producer: 24, consumer: 168}}
epilogue: {ops: [gelu_erf, silu], subtile_n: 256}
buffering: {stages: 2, epilogue: 1}
"""
    )
    plan = plan_spec(source)
    (found,) = (each for each in warnings(source, plan) if each.code == "expected-registers")
    assert (found.severity, found.field) == ("warning", "warp_specialization.registers.consumer")
    assert "168 registers per consumer thread, 296 are expected to be needed" in found.message
    with knowing({kernel_digest(plan): Verdict(168, 0)}):
        assert "expected-registers" not in {each.code for each in warnings(source, plan)}


@pytest.mark.quick
def test_a_spec_whose_best_plans_all_spill_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.build.MOST_PASSED_OVER", 3)
    with pytest.raises(GemmgenError, match="registers-given-up") as caught:
        settle(source_of(), refusing(1000))
    assert "the 4 best plans were compiled" in str(caught.value)


@pytest.mark.quick
def test_a_module_whose_plan_others_precede_is_up_to_date(tmp_path: Path) -> None:
    """Its manifest says which kernels were passed over, so a machine without a compiler plans the same."""
    spec = tmp_path / "open.yaml"
    spec.write_bytes(OPEN)
    settled = settle(load_spec(spec), refusing(1))
    product.write(settled.product, tmp_path)
    manifest = json.loads((tmp_path / "open.json").read_text())
    assert [each["verdict"]["spilled_bytes"] for each in manifest["passed_over"]] == [24]
    assert product.check([make_as_built(spec, tmp_path)], tmp_path, exhaustive=False) == ()
    assert product.check([make(spec)], tmp_path, exhaustive=False) != ()
    (tmp_path / "open.json").write_text("no manifest")
    assert make_as_built(spec, tmp_path).passed_over == ()


ERF = (
    OPEN
    + b"""tile: {m: 256, n: 128, k: 64}
cluster: {m: 1, n: 1}
warp_specialization: {kind: cooperative, consumers: 2}
epilogue: {ops: [gelu_erf]}
"""
)
"""Whose best plans spill, and of which a later one does not: its producer has fewer registers."""


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ship an empty table."""
    monkeypatch.setattr("gemmgen.plan.verdicts.shipped", lambda: Table(shipped().triton, {}))


@pytest.mark.usefixtures("nothing_known")
def test_a_build_passes_over_what_spills_and_says_so(tmp_path: Path) -> None:
    spec = tmp_path / "erf.yaml"
    spec.write_bytes(ERF)
    first = plan_spec(load_spec(spec))
    built = build(spec, tmp_path, simulation=False)
    assert built.passed_over[0].kernel == kernel_digest(first)
    assert all(passed.verdict.spilled_bytes > 0 for passed in built.passed_over)
    assert built.as_dict()["passed_over"] == [asdict(passed) for passed in built.passed_over]
    assert built.resources
    assert built.resources.spilled_bytes == 0
    assert product.check([make_as_built(spec, tmp_path)], tmp_path, exhaustive=False) == ()


@pytest.mark.usefixtures("nothing_known")
def test_a_build_refuses_what_is_pinned_and_spills_as_the_table_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's numbers, at the field that helps, with the same words as where it was asked before."""
    monkeypatch.chdir(ROOT)
    with pytest.raises(GemmgenError) as caught:
        build(SHORT.relative_to(ROOT), tmp_path, simulation=False)
    refused = SHORT.with_suffix(".txt").read_text()
    assert f"{caught.value}\n" == refused.replace("(predicted)", f"(verified by Triton {shipped().triton})")
    assert list(tmp_path.iterdir()) == []


# --- advice to a refused spec is compiled before it is given

STUCK = ROOT / "tests" / "invalid" / "rules" / "compiler_registers_consumer_sums.yaml"


@dataclass
class Compiler:
    """A compiler that refuses some kernels, with the kernels that it was given."""

    refuses: Callable[[Kernel], bool]
    compiled: list[Kernel] = field(default_factory=list[Kernel])

    def lowered_of(self, each: Product) -> Lowered:
        self.compiled.append(each.plan)
        if self.refuses(each.plan):
            raise ShortageError([Diagnostic("open.yaml", "plan-differs", "registers spill")], SPILLS)
        return FITTING

    @property
    def digests(self) -> set[str]:
        return {kernel_digest(each) for each in self.compiled}


FITTING = Lowered(
    {},
    Resources(
        0,
        0,
        0,
        0,
        0,
        0,
        mmas=(),
        operations={},
        traps=False,
        setmaxnreg=(),
        multicast_loads=0,
        ptxas_notes=(),
    ),
)


def advised(compiler: Compiler) -> Diagnostic:
    """Return the diagnostic of a spec that the shipped table refuses."""
    error = with_compiled_advice(load_spec(STUCK), {}, compiler.lowered_of)
    assert error is not None
    (found,) = error.diagnostics
    assert found.code == "compiler-registers"
    return found


def notes(found: Diagnostic) -> list[str]:
    return [together[-1].note for together in found.fix]


@pytest.mark.quick
def test_a_plan_alone_says_that_its_advice_is_predicted() -> None:
    with pytest.raises(GemmgenError) as caught:
        plan_spec(load_spec(STUCK))
    (found,) = caught.value.diagnostics
    assert found.message.endswith("; use 168 (predicted)")
    assert notes(found) == ["predicted"]
    assert found.advice == (("warp_specialization.registers.consumer", 168),)


@pytest.mark.quick
def test_advice_that_compiles_is_given_as_verified() -> None:
    compiler = Compiler(lambda _: False)
    found = advised(compiler)
    assert found.message.endswith(f"; use 168 (verified by Triton {shipped().triton})")
    assert len(compiler.compiled) == 1


@pytest.mark.quick
def test_where_advice_spills_the_next_kernel_is_compiled() -> None:
    compiler = Compiler(lambda _: len(compiler.compiled) == 1)
    assert notes(advised(compiler)) == [f"verified by Triton {shipped().triton}"]
    assert len(compiler.digests) == len(compiler.compiled) == 2


@pytest.mark.quick
def test_where_all_kernels_of_some_advice_spill_the_next_advice_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gemmgen.compiled_advice.MOST_ADVICE", 100)
    compiler = Compiler(lambda plan: hopper(plan).consumer_registers == 168)
    found = advised(compiler)
    assert found.advice != (("warp_specialization.registers.consumer", 168),)
    assert notes(found) == [f"verified by Triton {shipped().triton}"]
    assert len(compiler.digests) == len(compiler.compiled) > 1
    assert hopper(compiler.compiled[-1]).consumer_registers != 168


@pytest.mark.quick
def test_after_some_kernels_the_advice_is_predicted() -> None:
    compiler = Compiler(lambda _: True)
    found = advised(compiler)
    assert len(compiler.digests) == len(compiler.compiled) == MOST_ADVICE
    assert notes(found) == ["predicted"]


@pytest.mark.quick
def test_no_kernel_is_compiled_for_the_advice_of_a_rule() -> None:
    compiler = Compiler(lambda _: False)
    refused = load_spec(ROOT / "tests" / "invalid" / "rules" / "smem_capacity.yaml")
    with pytest.raises(GemmgenError):
        plan_spec(refused)
    assert with_compiled_advice(refused, {}, compiler.lowered_of) is None
    assert compiler.compiled == []


SPILLING = b"""title: consumers without registers for erf and SiLU
target: h100
operands: {a: {dtype: bf16, major: mn, swizzle: 32}, b: {dtype: bf16, swizzle: 32}, d: {dtype: e4m3}}
accumulator: fp32
tile: {m: 128, n: 128, k: 128}
mma: {n: 128}
warps: {m: 4}
buffering: {stages: 3, epilogue: 2, outstanding_mmas: 0}
warp_specialization: {kind: cooperative, consumers: 2, registers: {producer: 96, consumer: 160}}
schedule: {kind: persistent, order: row, minor: n}
occupancy: 1
cluster: {m: 1, n: 1}
epilogue: {ops: [gelu_erf, column_bias, silu, tensor_scale], subtile_n: 64}
"""
"""A spec that spills 56 bytes, and none with the 168 registers that the rules advise."""


@pytest.mark.nightly
@pytest.mark.usefixtures("nothing_known")
def test_a_build_compiles_what_it_advises_for_a_kernel_that_spills(tmp_path: Path) -> None:
    spec = tmp_path / "spills.yaml"
    spec.write_bytes(SPILLING)
    with knowing({kernel_digest(plan_spec(load_spec(spec))): SPILLS}), pytest.raises(GemmgenError) as told:
        plan_spec(load_spec(spec))
    assert told.value.diagnostics[0].message.endswith("; use 168 (predicted)")
    with pytest.raises(GemmgenError) as caught:
        build(spec, tmp_path, simulation=False)
    (found,) = caught.value.diagnostics
    assert found.message.endswith(f"; use 168 (verified by Triton {shipped().triton})")
    changed = json.dumps(applied(stated(load_spec(spec).spec), found.advice)).encode()
    (lowered,) = settle(source_of(changed), lowered_of).results
    assert lowered.resources.spilled_bytes == 0
