"""bench of groups: torch's calls for the same result, the inputs of a measurement, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fake_gpu import FakeMachine, always
from modules import GROUPED_SPECS, ROOT, spec_file
from right_kernel import module_of
from torch import Tensor

from gemmgen import library
from gemmgen.bench import Protocol, Subject, bench, from_json, plain_table, to_json
from gemmgen.bench.arms import Progress, input_set, judged
from gemmgen.bench.baseline import cublas
from gemmgen.bench.prepare import Prepared
from gemmgen.bench.record import Environment
from gemmgen.bench.result_log import ContestOf, Result, ResultLog, Rounds
from gemmgen.bench.suite_figures import errors_of, points_of
from gemmgen.bench.suite_file import load_suite
from gemmgen.bench.suite_run import SuiteMachinery, time_suite
from gemmgen.bench.tasks import Task
from gemmgen.errors import GemmgenError
from gemmgen.features.checking import sides_of
from gemmgen.json_files import BadFieldError, decode, encoded
from gemmgen.library.assemble import assemble
from gemmgen.library.sources import read
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import reference
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.groups import Groups
from gemmgen.problem.observation import flops
from gemmgen.spec import SpecFile, load_spec, parse_spec

SHAPE = (96, 48, 64)
OFFSETS, MASKED, BATCHED, OF_K = (
    "h100_bf16_grouped",
    "h100_bf16_masked",
    "h100_bf16_batched",
    "h100_bf16_wgrad_bf16_out",
)
SUBJECT = Subject("specs/fake.yaml", "0" * 64, "1" * 64)


def spec(stem: str) -> SpecFile:
    return load_spec(spec_file(stem))


def few_groups(stem: str, count: int = 5) -> SpecFile:
    """Return a committed spec with a few groups instead of its own number."""
    text = spec_file(stem).read_text(encoding="utf-8")
    number = spec(stem).problem.groups
    assert number
    return parse_spec(text.replace(f"count: {number.count}", f"count: {count}").encode(), stem)


STATED = {
    OFFSETS: "torch: torch._grouped_mm(a, b, offs=offs), bf16",
    "h100_bf16_grouped_bias": (
        "torch: torch._grouped_mm(a, b, offs=offs), bf16, then d.add_(column_bias[group of each row]),"
        " then d.mul_(row_scale[..., None])"
    ),
    "h100_bf16_grouped_gated": (
        "torch: torch._grouped_mm(a, b, offs=offs), bf16, then unfused: gate, up = d.chunk(2, 1); d ="
        " torch.nn.functional.silu(gate) * up"
    ),
    MASKED: (
        "cuBLAS's default choice: torch.bmm(a, b, out=d) of all M rows, bf16, reduced-precision reduction"
        " True"
    ),
    BATCHED: "cuBLAS's default choice: torch.bmm(a, b, out=d), bf16, reduced-precision reduction True",
    "h100_bf16_batched_fp32_out": (
        "cuBLAS's default choice: torch.bmm(a, b, out_dtype=torch.float32, out=d), bf16"
    ),
    OF_K: "torch: torch._grouped_mm(a, b, offs=offs), bf16",
    "h100_bf16_wgrad": "torch: torch._grouped_mm(a, b, offs=offs), bf16, then d.to(torch.float32)",
    "h100_bf16_masked_weighted": (
        "cuBLAS's default choice: torch.bmm(a, b, out=d) of all M rows, bf16, reduced-precision reduction"
        " True, then d.add_(column_bias[:, None]), then d.mul_(row_scale[..., None])"
    ),
    "h100_bf16_grouped_dgated": (
        "torch: torch._grouped_mm(a, b, offs=offs), bf16, then unfused: d = torch.cat((d * row_scale[:, None]"
        " * c.chunk(2, 1)[1] * torch.func.jvp(lambda y: torch.nn.functional.silu(y), (c.chunk(2, 1)[0],),"
        " (torch.ones_like(c.chunk(2, 1)[0]),))[1], d * row_scale[:, None] *"
        " torch.nn.functional.silu(c.chunk(2, 1)[0])), -1)"
    ),
    "h100_bf16_batched_dgated": (
        "cuBLAS's default choice: torch.bmm(a, b), bf16, reduced-precision reduction True, then unfused: d ="
        " torch.stack((d * c[..., 1::2] * torch.func.jvp(lambda y: torch.nn.functional.silu(y), (c[...,"
        " 0::2],), (torch.ones_like(c[..., 0::2]),))[1], d * torch.nn.functional.silu(c[..., 0::2])),"
        " -1).flatten(-2)"
    ),
    "h100_e4m3_grouped": (
        "torch: torch._scaled_grouped_mm(a, b, scale_a=ones, scale_b=ones, offs=offs,"
        " out_dtype=torch.bfloat16, use_fast_accum=True), e4m3, then d.mul_(tensor_scale)"
    ),
    "h100_e4m3_grouped_scaled": (
        "torch: torch._scaled_grouped_mm(a, b, scale_a=row_scale, scale_b=column_scale, offs=offs,"
        " out_dtype=torch.bfloat16, use_fast_accum=True), e4m3"
    ),
}


@pytest.mark.parametrize("stem", STATED)
def test_the_baseline_of_groups_is_stated_exactly(stem: str) -> None:
    assert cublas(spec(stem)).text == STATED[stem]


def is_by_index(path: Path) -> bool:
    """Return True for a spec that gathers rows of A, or scatters rows of D."""
    groups = load_spec(path).problem.groups
    return groups is not None and bool(groups.row_indices)


ON_A_CPU = sorted(
    path.stem
    for path in GROUPED_SPECS
    if "e4m3" not in path.stem
    and "fp32_out" not in path.stem  # torch.bmm(out_dtype=…) is for GPUs
    and not (load_spec(path).problem.gated and load_spec(path).problem.vectors)
    and not is_by_index(path)
    and not load_spec(path).problem.b.decoded
)
"""The specs whose baseline torch computes on a CPU."""


@pytest.mark.parametrize("path", [*filter(is_by_index, GROUPED_SPECS)], ids=lambda path: path.stem)
def test_rows_by_an_index_have_no_baseline(path: Path) -> None:
    with pytest.raises(GemmgenError, match="no matmul of rows by an index"):
        cublas(load_spec(path))


@pytest.mark.parametrize("stem", ON_A_CPU)
def test_what_torch_calls_computes_the_groups_of_a_spec(stem: str) -> None:
    source = few_groups(stem)
    made = input_set(SHAPE, source.problem, torch.Generator().manual_seed(0), None)
    baseline = cublas(source)
    with baseline.settings():
        for _ in range(2):  # no call changes what the next one reads
            found = judged(baseline.bind, made, source.problem)
            assert found.relative < 6.5e-2


def test_what_torch_has_no_call_for_is_refused_in_words() -> None:
    problems = {path.stem: load_spec(path).problem for path in GROUPED_SPECS}
    gated_with_bias = [
        stem for stem, each in problems.items() if each.gated and each.vectors and not each.gathers_a
    ]
    assert gated_with_bias
    for stem in gated_with_bias:
        with pytest.raises(GemmgenError, match=r"\[no-baseline\]: torch has no call for vectors of groups"):
            cublas(spec(stem))
    text = spec_file(OFFSETS).read_text().replace("dtype: bf16", "dtype: int8", 2)
    text = text.replace("d: {dtype: bf16}", "d: {dtype: int32}")
    with pytest.raises(GemmgenError, match=r"torch has no matmul of groups of int8 and int8"):
        cublas(parse_spec(text.encode(), "int8_groups"))


# --- inputs


def test_the_inputs_of_a_measurement_have_the_rows_for_which_kernels_are_planned() -> None:
    generator = torch.Generator().manual_seed(0)
    source = few_groups(OFFSETS)
    made = input_set(SHAPE, source.problem, generator, None)
    ends = [0, *map(int, made.inputs.extras["offs"])]
    rows = tuple(end - first for first, end in pairwise(ends))
    assert rows == Groups("m_offsets", 5).rows_of_each(96)
    assert made.d.shape == (96, 48)
    masked = input_set(SHAPE, few_groups(MASKED).problem, generator, None)
    assert tuple(map(int, masked.inputs.extras["rows"])) == Groups("m_masked", 5).rows_of_each(96)
    assert masked.d.shape == (5, 96, 48)
    assert input_set(SHAPE, few_groups(OF_K).problem, generator, None).d.shape == (5, 96, 48)


# --- operations and bytes


@pytest.mark.parametrize(
    ("stem", "operations", "moved"),
    [
        # 2 * 96 * 48 * 64, and the bytes of A, of 5 B, of D.
        (OFFSETS, 2 * 96 * 48 * 64, 2 * (96 * 64 + 5 * 48 * 64 + 96 * 48)),
        # 0 + 67 + 28 + 96 + 57 rows; the first group has no row, and its B is not read.
        (MASKED, 2 * 248 * 48 * 64, 2 * (248 * 64 + 4 * 48 * 64 + 248 * 48)),
        (BATCHED, 2 * 5 * 96 * 48 * 64, 2 * 5 * (96 * 64 + 48 * 64 + 96 * 48)),
        (OF_K, 2 * 96 * 48 * 64, 2 * (96 * 64 + 48 * 64 + 5 * 96 * 48)),
    ],
)
def test_operations_and_bytes_are_those_of_all_groups(stem: str, operations: int, moved: int) -> None:
    problem = few_groups(stem).problem
    dtypes = Dtypes.of(problem)
    assert Groups("m_masked", 5).rows_of_each(96) == (0, 67, 28, 96, 57)
    assert dtypes.flops(SHAPE) == problem.flops(SHAPE) == operations
    assert dtypes.moved_bytes(SHAPE) == moved


def test_a_record_names_the_groups_and_an_earlier_one_has_none() -> None:
    dtypes = Dtypes.of(few_groups(OFFSETS).problem)
    assert decode(Dtypes, encoded(dtypes)) == dtypes
    assert encoded(Dtypes("bf16", "bf16", "bf16")) == {"a": "bf16", "b": "bf16", "d": "bf16"}
    with pytest.raises(BadFieldError, match="from 1 to 65,536 groups"):
        decode(Dtypes, {**asdict(dtypes), "group_count": 10**9})


# --- a measurement


def right_groups(source: SpecFile, spoil: Callable[[Tensor], object], machine: FakeMachine) -> object:
    """Return a module that computes groups exactly, and takes 1 ms on the fake machine."""

    def matmul(a: Tensor, b: Tensor, *, out: Tensor, **extras: Tensor) -> Tensor:
        inputs = Inputs(a, b, extras, source.problem.b_blocks, sides=sides_of(source.problem))
        exact = reference(inputs, source.problem)
        rows = inputs.computed_rows(torch.arange(len(out.flatten(0, -2))).view(*out.shape[:-1], 1))
        out.flatten(0, -2)[rows[:][:, 0]] = exact.to(out.dtype)
        spoil(out)
        machine.spend("o", 1e-3, 3e-6)
        return out

    return module_of(matmul)


@pytest.mark.parametrize("stem", [OFFSETS, MASKED, BATCHED, OF_K])
def test_groups_are_checked_and_timed_beside_torch(stem: str) -> None:
    source, machine = few_groups(stem), FakeMachine()
    baseline = cublas(source)

    def bind(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
        call = baseline.bind(inputs, d)

        def spending() -> Tensor:
            machine.spend("b", 1.5e-3, 7e-6)
            return call()

        return spending

    record = bench(
        right_groups(source, lambda _: None, machine),  # pyright: ignore[reportArgumentType]
        SUBJECT,
        source,
        [SHAPE],
        protocol=Protocol(warm_up_seconds=0.01, pairs=2, max_input_sets=2),
        machine=machine,
        baseline=replace(baseline, bind=bind),
    )
    (measurement,) = record.measurements
    assert measurement.observed().ratio == pytest.approx(1.5)
    found = measurement.observed(dtypes=record.dtypes)
    assert found.tflops == pytest.approx(source.problem.flops(SHAPE) / 1e-3 / 1e12)
    assert from_json(to_json(record), "record.json") == record
    name = "cuBLAS" if stem in (MASKED, BATCHED) else "torch"
    assert f"{name} TFLOP/s" in plain_table([record])


@pytest.mark.parametrize("stem", [OFFSETS, MASKED])
def test_wrong_groups_are_not_timed(stem: str) -> None:
    source, machine = few_groups(stem), FakeMachine()

    def spoil(d: Tensor) -> None:
        d.flatten(0, -2)[95 if d.dim() == 2 else 96 + 66] = 0  # the last row of a group

    with pytest.raises(GemmgenError, match=r"\[wrong-result\]"):
        bench(
            right_groups(source, spoil, machine),  # pyright: ignore[reportArgumentType]
            SUBJECT,
            source,
            [SHAPE],
            protocol=Protocol(warm_up_seconds=0.01, pairs=2, max_input_sets=2),
            machine=machine,
        )


def test_a_suite_does_not_take_the_two_kernels_of_torch_for_a_split_k() -> None:
    log = ResultLog.opened(ROOT / "benchmarks" / "suites" / "h200_long_k.jsonl")
    session = log.sessions[-1]
    result = next(line for line in log.current() if isinstance(line, Result))
    divided = replace(result, baseline_kernels=("prepare", "gemm"))
    of_groups = replace(session, contests=tuple(map(_in_groups, session.contests)))
    (dense, *_), (grouped, *_) = (
        points_of(ResultLog(None, [facts, divided])) for facts in (session, of_groups)
    )
    assert (dense.splits_k, grouped.splits_k) == (True, False)
    assert dense.flops == flops(result.shape)
    assert grouped.flops == flops(result.shape, groups=Groups("batched", 64))
    # 64 products in the time of one are faster than the datasheet.
    assert errors_of(ResultLog(None, [of_groups, divided]))


def _in_groups(facts: ContestOf) -> ContestOf:
    return replace(facts, dtypes=replace(facts.dtypes, group_kind="batched", group_count=64))


# --- a suite


EXPERTS = ROOT / "benchmarks" / "suites" / "specs"
FAST, SLOW = "experts_decode_8x64x256", "experts_prefill_64x256x64"
SUITE_TEXT = "title: t\ndtypes: [bf16]\nfamilies: {x: {shapes: [[40, 16, 32], [512, 16, 32]]}}\n"


def nothing_to_prepare(tasks: Sequence[Task], progress: Progress) -> Prepared:
    """Return that no kernel failed, and that nobody knows which kernels torch launches."""
    return Prepared({}, {})


class H200(FakeMachine):
    """A machine with clocks of its own, of a product that a spec can name."""

    def environment(self) -> Environment:
        return replace(super().environment(), gpu="NVIDIA H200")


@pytest.mark.nightly
def test_a_suite_of_groups_is_timed_and_a_library_is_made_of_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, machine = load_spec(EXPERTS / f"{FAST}.yaml"), H200()
    torchs = cublas(source)

    def imported(path: Path) -> ModuleType:
        def matmul(a: Tensor, b: Tensor, *, offs: Tensor, out: Tensor) -> Tensor:
            few = len(a) < 128
            machine.spend("k", 1e-3 if (path.stem == FAST) == few else 2e-3, 3e-6)
            return out.copy_(
                reference(Inputs(a, b, {"offs": offs}, sides=sides_of(source.problem)), source.problem)
            )

        module = ModuleType(path.stem)
        module.__dict__["matmul"] = matmul
        return module

    def bind(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
        call = torchs.bind(inputs, d)

        def spending() -> Tensor:
            machine.spend("x", 3e-3, 7e-6)
            return call()

        return spending

    monkeypatch.setattr("gemmgen.bench.suite_run.import_generated", imported)
    monkeypatch.setattr("gemmgen.bench.tasks.cublas", always(replace(torchs, bind=bind)))
    (tmp_path / "suite.yaml").write_text(SUITE_TEXT)
    log = ResultLog(tmp_path / "record.jsonl")
    protocol = Rounds(
        rounds=2, warm_up_seconds=0.01, settle_seconds=0.005, graph_seconds=1e-3, max_input_sets=1
    )
    time_suite(
        [EXPERTS / f"{stem}.yaml" for stem in (FAST, SLOW)],
        load_suite(tmp_path / "suite.yaml"),
        log,
        machinery=SuiteMachinery(protocol, machine, nothing_to_prepare),
    )
    facts = log.sessions[-1].contests[0]
    assert (facts.dtypes.groups, facts.baseline) == (Groups("m_offsets", 128), STATED[OFFSETS])
    ratios = {(point.shape[0], point.kernel): point.ratio for point in points_of(log)}
    assert ratios[40, FAST] == ratios[512, SLOW] == pytest.approx(3.0)
    assert ratios[40, SLOW] == ratios[512, FAST] == pytest.approx(1.5)
    found = read([tmp_path / "record.jsonl"])
    assert (found.gpu, found.baseline) == ("NVIDIA H200", STATED[OFFSETS])
    made = assemble("of_a_suite", found, library.choose(found))
    stems = {m: stem for (m, _, _), stem in made.fastest.items()}
    assert [stems[40].split("_")[-1], stems[512].split("_")[-1]] == ["8x64x256", "64x256x64"]
