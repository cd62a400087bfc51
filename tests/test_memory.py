"""The GPU memory of checks: estimates hold, shapes fit what is free, and too little has a name of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from drawn import random_inputs
from fake_gpu import always
from modules import module_file, spec_file
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from gemmgen.cli.ending import ended
from gemmgen.device import OUT_OF_MEMORY, context_lost, is_out_of_memory, memory_text, require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.features.checking import sides_of
from gemmgen.module import import_generated
from gemmgen.numerics.case import Case, workspace_bytes
from gemmgen.numerics.drawing import drawn_inputs
from gemmgen.numerics.encoding import TORCH_DTYPES, count_differing, differing, not_finite, pieces
from gemmgen.numerics.inputs import ComputedRows
from gemmgen.numerics.matrices import touched
from gemmgen.numerics.quantized import numbers_of
from gemmgen.numerics.reference import Check, reference
from gemmgen.numerics.side import ONE_RUN, CheckGroup, Held
from gemmgen.plan.access import TensorAccess
from gemmgen.planner import plan_spec
from gemmgen.problem import Matmul, Shape
from gemmgen.spec import SpecFile, load_spec
from gemmgen.verify import verify, verify_numbers
from gemmgen.verify.memory import (
    ACCEPTANCE_BYTES,
    LEAST_GROUPS,
    Room,
    Unfit,
    fitted,
    needed_bytes,
    with_groups,
)
from gemmgen.verify.verification import groups_of, own_output, run_checks

GIB = 1 << 30
MASKED = "h100_fp16_masked_rows16"
SQUARE = (8192, 8192, 8192)
STEMS = (
    "h100_bf16",
    MASKED,
    "h100_tf32",
    "h100_bf16_gated",
    "h100_bf16_masked_saved",
    "h100_bf16_masked_quantized",
    "h100_e4m3_blockwise",
    "h100_bf16_misaligned",
    "b200_nvfp4",
)
LITTLE = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has 79.1 GiB\nmore")


def zeros_of(problem: Matmul) -> Callable[..., Any]:
    """Return a matmul that allocates what a wrapper does, and multiplies nothing."""

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor) -> Any:
        m, n = a.shape[-2], b.shape[-1] // problem.b_blocks
        if out is None:
            out = torch.zeros(problem.extents_of_d(m, n), dtype=TORCH_DTYPES[problem.d.name])
        if problem.saves:
            return out, extras["saved"]
        if problem.d_scale is None:
            return out
        scales = extras.get("out_scale")
        blocks = out.shape[-1] // problem.d_scale.vector
        return out, torch.ones(*out.shape[:-1], blocks) if scales is None else scales

    return matmul


def case_of(stem: str, shape: Shape, count: int | None = None) -> Case:
    """Return a case of a spec, with a number of groups if there are any."""
    problem = load_spec(spec_file(stem)).problem
    module = import_generated(module_file(stem))
    case = Case(
        zeros_of(problem),
        shape,
        problem,
        torch.Generator().manual_seed(0),
        repeats=2,
        promote_k=None,
        pack_scales=getattr(module, "pack_scales", None),
        arrange_scales=getattr(module, "arrange_scales", None),
        misaligned=problem.copies_misaligned,
        sides=sides_of(problem),
    )
    case = with_groups(case, count) if problem.groups and count else case
    return replace(case, matmul=numbers_of(zeros_of(case.problem), case.problem))


def all_helds(case: Case) -> list[Held]:
    return [group.held for group in groups_of(case.problem, "cuda")]


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most bytes that torch had allocated on the CPU at one time, as its profiler counts them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


# --- the estimate


@pytest.mark.parametrize("stem", STEMS)
def test_checks_need_no_more_memory_than_is_estimated(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.verify.memory.RESERVED_BYTES", 0)
    case = case_of(stem, (300, 768, 512), count=6)
    checked = 0
    for group in groups_of(case.problem, "cpu"):
        if group.name in ("packed scales", "other scales"):
            continue  # the calls of this test would accept any scales
        found = peak_bytes(lambda group=group: list(group.checks(case)))
        assert 0 < found <= needed_bytes(case, (group.held,)), group.name
        checked += 1
    assert checked >= 5


def test_of_many_groups_the_estimate_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a bounded size are small beside inputs and results, as they are for large shapes."""
    monkeypatch.setattr("gemmgen.verify.memory.RESERVED_BYTES", 0)
    for module in ("numerics.encoding", "numerics.matrices", "verify.memory"):
        monkeypatch.setattr(f"gemmgen.{module}.CHUNK_ELEMENTS", 1 << 14)
    case = case_of(MASKED, (96, 128, 160), count=100)
    groups = groups_of(case.problem, "cpu")
    found = max(peak_bytes(lambda group=group: list(group.checks(case))) for group in groups)
    assert found <= needed_bytes(case, [group.held for group in groups]) < 2 * found


def test_nothing_is_allocated_for_an_estimate() -> None:
    case = case_of(MASKED, SQUARE)
    assert peak_bytes(lambda: needed_bytes(case, all_helds(case))) < 1 << 20


@pytest.mark.parametrize("stem", STEMS)
def test_inputs_that_are_not_filled_lie_as_the_drawn_ones_do(stem: str) -> None:
    case = case_of(stem, (40, 256, 256), count=3)
    for guarded in (False, True):
        drawn = random_inputs(
            case.shape, case.problem, case.generator, guarded=guarded, misaligned=case.misaligned
        )
        bare = drawn_inputs(case.layout(guarded=guarded).unfilled, case.problem, case.sides)
        assert [*drawn.extras] == [*bare.extras]
        for one, other in zip(drawn.tensors, bare.tensors, strict=True):
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
            assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
            assert other.device.type == "meta"


def test_the_workspace_of_partial_sums_is_counted() -> None:
    for stem in ("h100_bf16_split8_parallel", "h100_bf16_split15_atomic"):
        module, source = import_generated(module_file(stem)), load_spec(spec_file(stem))
        found = workspace_bytes(module, source.problem, (1024, 1024))
        parts = 1 if source.spec.schedule.reduction == "atomic" else 8
        assert 4 * parts * 1024 * 1024 <= found < 2 * 4 * parts * 1024 * 1024
        case = case_of(stem, (1024, 1024, 512))
        more = replace(case, workspace_bytes=found)
        assert needed_bytes(more, (ONE_RUN,)) - needed_bytes(case, (ONE_RUN,)) >= found
    module, source = import_generated(module_file("h100_bf16")), load_spec(spec_file("h100_bf16"))
    assert workspace_bytes(module, source.problem, (1024, 1024)) == 0


# --- shapes that fit


@pytest.mark.parametrize("stem", [MASKED, "h100_bf16_grouped_512", "h100_bf16_batched_fp32_out"])
def test_the_largest_acceptance_shape_fits_a_card_of_80_gb_with_all_groups(stem: str) -> None:
    case = case_of(stem, SQUARE)
    needed = needed_bytes(case, all_helds(case))
    assert needed < 78 * 10**9
    assert fitted(case, all_helds(case), Room(78 * 10**9)) == (case, None)
    fewer, unfit = fitted(case, all_helds(case), Room(78 * 10**9, ACCEPTANCE_BYTES))
    assert fewer is not None
    assert unfit is not None
    assert needed_bytes(fewer, all_helds(case)) <= ACCEPTANCE_BYTES
    before, after = case.problem.groups, fewer.problem.groups
    assert before is not None
    assert after is not None
    assert after == replace(before, count=unfit.groups)
    assert LEAST_GROUPS <= after.count < before.count
    more = with_groups(case, after.count + 1)
    assert needed_bytes(more, all_helds(case)) > ACCEPTANCE_BYTES


def test_a_shape_with_fewer_groups_says_so_in_a_sentence() -> None:
    case = case_of(MASKED, SQUARE)
    needed = needed_bytes(case, all_helds(case))
    _, unfit = fitted(case, all_helds(case), Room(40 * GIB))
    assert unfit is not None
    numbers = "8192x8192x8192", f"{unfit.groups} of 128", f"{needed / GIB:.1f} GiB", "40.0 GiB"
    assert all(number in str(unfit) for number in numbers)
    assert unfit.as_dict()["groups"] == unfit.groups


@pytest.mark.parametrize("stem", ["h100_bf16", MASKED])
def test_a_shape_that_does_not_fit_is_left_out_with_a_sentence(stem: str) -> None:
    case = case_of(stem, SQUARE)
    needed = needed_bytes(case, all_helds(case))
    assert fitted(case, all_helds(case), Room(GIB // 2)) == (
        None,
        Unfit(SQUARE, needed, GIB // 2, case.problem.groups and case.problem.groups.count),
    )
    text = str(Unfit(SQUARE, needed, GIB // 2))
    assert all(number in text for number in ("8192x8192x8192", f"{needed / GIB:.1f} GiB", "0.5 GiB"))


def test_what_is_enough_for_groups_leaves_nothing_out() -> None:
    case = replace(case_of("h100_bf16", SQUARE), workspace_bytes=10 * GIB)
    assert needed_bytes(case, all_helds(case)) > ACCEPTANCE_BYTES
    assert fitted(case, all_helds(case), Room(60 * GIB, ACCEPTANCE_BYTES)) == (case, None)


def test_a_device_without_a_limit_takes_every_shape() -> None:
    case = case_of(MASKED, SQUARE)
    assert fitted(case, all_helds(case), None) == (case, None)


# --- a run on a card with little free memory


def right(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    if out is not None and out.shape[1] * out.element_size() % 16:
        raise ValueError("out must have rows of whole 16-byte units")
    exact = a.double() @ b.double()
    return exact.to(a.dtype) if out is None else out.copy_(exact)


def verified(matmul: Callable[..., Tensor], shapes: list[Shape], told: list[str] | None = None) -> Any:
    module: Any = type("Fake", (), {"matmul": staticmethod(matmul)})
    source = load_spec(spec_file("h100_bf16"))
    return verify(
        module,
        source,
        shapes,
        repeats=2,
        device="cpu",
        progress=(told if told is not None else []).append,
    )


def test_a_shape_is_left_out_and_the_others_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.verify.verification.free_bytes", always(GIB))
    told: list[str] = []
    found = verified(right, [(13, 24, 40), SQUARE], told)
    assert found.passed
    assert {check.shape for check in found.checks} == {(13, 24, 40)}
    (unfit,) = found.left_out
    assert unfit.shape == SQUARE
    assert str(unfit) in told
    assert found.as_dict()["unfit"] == [unfit.as_dict()]


def test_a_run_that_left_out_all_shapes_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.verify.verification.free_bytes", always(1 << 20))
    found = verified(right, [(13, 24, 40), SQUARE])
    assert not found.passed
    assert (found.checks, found.failures) == ((), ())
    assert len(found.left_out) == 2


def test_the_memory_that_is_free_is_asked_before_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter((1 << 20, GIB))

    def free_bytes(_: torch.device) -> int:
        return next(free)

    monkeypatch.setattr("gemmgen.verify.verification.free_bytes", free_bytes)
    found = verified(right, [(13, 24, 40), (16, 24, 40)])
    assert [unfit.shape for unfit in found.unfit] == [(13, 24, 40)]
    assert {check.shape for check in found.checks} == {(16, 24, 40)}


def test_only_acceptance_shapes_have_fewer_groups_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.verify.verification.free_bytes", always(78 * 10**9))
    rooms: dict[Shape, Room] = {}

    def fit(case: Case, _: object, room: Room) -> tuple[None, None]:
        rooms[case.shape] = room
        return None, None

    monkeypatch.setattr("gemmgen.verify.verification.fitted", fit)
    source = load_spec(spec_file(MASKED))
    module = import_generated(module_file(MASKED))
    verify(module, source, device="cpu")
    assert rooms[SQUARE] == Room(78 * 10**9, ACCEPTANCE_BYTES)
    assert rooms[10, 256, 384] == Room(78 * 10**9)
    verify(module, source, [SQUARE], device="cpu")
    assert rooms[SQUARE] == Room(78 * 10**9)


# --- memory that does not suffice all the same


def test_memory_that_does_not_suffice_is_no_fault_of_the_kernel() -> None:
    calls: list[bool] = []

    def hungry(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        calls.append(out is None)
        if out is None:
            raise LITTLE
        return right(a, b, out=out)

    found = verified(hungry, [(13, 24, 40)])
    assert not found.passed
    (failure,) = found.failures
    assert (failure.what, failure.fault, failure.measured) == ("own output", OUT_OF_MEMORY, None)
    assert failure.detail.endswith("OutOfMemoryError: " + str(LITTLE).splitlines()[0])
    assert calls.count(False) > 3  # the other checks ran
    assert found.as_dict()["checks"][0]["fault"] == OUT_OF_MEMORY

    def wrong(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        return right(a, b, out=out).mul_(2)

    assert {failure.fault for failure in verified(wrong, [(13, 24, 40)]).failures} == {"wrong-kernel"}


def test_memory_that_does_not_suffice_loses_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: RuntimeError) -> Callable[[], None]:
        def synchronize() -> None:
            raise error

        return synchronize

    monkeypatch.setattr(torch.cuda, "synchronize", fail(LITTLE))
    assert not context_lost()
    monkeypatch.setattr(torch.cuda, "synchronize", fail(RuntimeError("CUDA error: misaligned address")))
    assert context_lost()


def test_out_of_memory_is_known_by_its_type_its_text_or_its_cause() -> None:
    assert is_out_of_memory(LITTLE)
    assert is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `create`"))
    assert not is_out_of_memory(RuntimeError("out of resource: shared memory, Required: 300000"))
    assert not is_out_of_memory(ValueError("out of memory"))
    caused = ValueError("launch")
    caused.__cause__ = LITTLE
    assert is_out_of_memory(caused)


def test_the_text_has_the_bytes_needed_free_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * GIB, 80 * GIB))
    text = memory_text(LITTLE, 5 * GIB)
    assert all(number in text for number in ("5.0 GiB", "3.0 GiB", "80.0 GiB"))
    assert text.endswith(f": OutOfMemoryError: {str(LITTLE).splitlines()[0]}")


def test_a_command_ends_with_a_diagnostic_whichever_stage_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def step() -> int:
        raise LITTLE

    assert ended(step) == 1
    assert "error[out-of-memory]: " in capsys.readouterr().err

    def other() -> int:
        raise RuntimeError("a fault of gemmgen")

    with pytest.raises(RuntimeError, match="a fault of gemmgen"):
        ended(other)


def test_a_group_that_runs_out_of_memory_leaves_the_next_shape_its_checks() -> None:
    def checks(case: Case) -> Iterator[Check]:
        if case.shape == (8, 8, 16):
            raise LITTLE
        yield case.check("fine", 0, 0)

    case = case_of("h100_bf16", (8, 8, 16))
    cases = (case, replace(case, shape=(16, 8, 16)))
    found = [*run_checks(cases, (CheckGroup("one", checks),), lambda: False, lambda _: None)]
    assert [(each.shape, each.fault) for each in found if isinstance(each, Check) and not each.passed] == [
        ((8, 8, 16), OUT_OF_MEMORY)
    ]
    assert len(found) == 2
    assert own_output is groups_of(case.problem, "cpu")[0].checks


# --- parts


def test_pieces_have_all_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.numerics.encoding.CHUNK_ELEMENTS", 12)
    for shape in ((7, 5), (3, 4, 5), (2, 3, 13), (40,), (0, 5), (1, 1)):
        matrix = torch.arange(float(math.prod(shape))).view(shape)
        found = [piece for (piece,) in pieces(matrix)]
        assert torch.equal(torch.cat([piece.reshape(-1) for piece in found]), matrix.reshape(-1))
        assert all(piece.numel() <= max(12, shape[-1]) for piece in found)
        other = matrix.clone()
        other.view(-1)[1::3] += 1
        count = len(other.view(-1)[1::3])
        assert count_differing(matrix, other) == count
        assert differing(matrix, other).item() == bool(count)
        assert touched(matrix) == matrix.numel()
        assert not_finite(torch.full_like(matrix, math.nan)) == matrix.numel()


def test_rows_of_groups_are_read_where_they_lie() -> None:
    d = torch.arange(20.0).view(10, 2)
    rows = ComputedRows(d, ((0, 2), (3, 3), (5, 9)))
    kept = torch.cat((d[0:2], d[5:9]))
    assert len(rows) == 6
    for first in range(7):
        for end in range(first, 9):
            assert torch.equal(rows[first:end], kept[first:end])
    assert rows[3:5].data_ptr() == d[6:8].data_ptr()  # no copy
    assert torch.equal(torch.cat([*rows.parts()]), kept)
    index = torch.arange(9, -1, -1)
    scattered = ComputedRows(d, ((0, 2), (3, 3), (5, 9)), index)
    expected = torch.cat((d[index][0:2], d[index][5:9]))
    assert torch.equal(scattered[:], expected)
    assert torch.equal(torch.cat([*scattered.parts()]), expected)


@pytest.mark.parametrize("stem", ["h100_bf16", "h100_tf32", "h100_e4m3_blockwise", "b200_nvfp4", "h100_int8"])
def test_the_reference_does_not_depend_on_the_parts_of_k(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load_spec(spec_file(stem)).problem
    inputs = random_inputs((40, 128, 640), problem, torch.Generator().manual_seed(0))
    whole = reference(inputs, problem)
    monkeypatch.setattr("gemmgen.numerics.reference.CHUNK_BYTES", 8 * 128 * 256)  # 256 of K at a time
    parts = reference(inputs, problem)
    assert torch.allclose(whole, parts, rtol=1e-12, atol=1e-12)
    peak = peak_bytes(lambda: reference(inputs, problem))
    monkeypatch.undo()
    assert peak < peak_bytes(lambda: reference(inputs, problem))


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("stem", ["h100_bf16", MASKED])
def test_on_a_card_that_others_have_filled_small_shapes_are_checked(stem: str) -> None:
    source = load_spec(spec_file(stem))
    device = gpu_of(source)
    module = import_generated(module_file(stem))
    small = (208, 416, 304)
    with filled(device, leaving=4 * GIB):
        found = verify(module, source, [small, SQUARE], deterministic=plan_spec(source).deterministic)
    assert found.passed, "\n".join(map(str, found.failures))
    assert {check.shape for check in found.checks} >= {small}
    if found.left_out:
        assert [unfit.shape for unfit in found.left_out] == [SQUARE]
    with filled(device, leaving=GIB // 4):
        nothing = verify(module, source, [SQUARE])
    assert not nothing.passed
    assert nothing.failures == ()


@pytest.mark.gpu
@pytest.mark.parametrize("stem", ["h100_bf16", MASKED, "h100_bf16_split8_parallel", "h100_bf16_misaligned"])
def test_on_a_gpu_checks_run_in_the_memory_that_is_estimated(stem: str) -> None:
    """With a limit at the estimate, torch gives back the memory that it keeps unused, and the checks pass."""
    source = load_spec(spec_file(stem))
    device = gpu_of(source)
    module = import_generated(module_file(stem))
    shape = (4095, 4097, 4104) if TensorAccess(source.problem).n_multiple == 1 else (4096, 4096, 4096)
    verify(module, source, [(208, 416, 304)], repeats=2)  # compiles
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    _, total = torch.cuda.mem_get_info(device)
    estimates: list[int] = []
    allow: Any = vars(torch.cuda)["set_per_process_memory_fraction"]  # it has no types

    def limit(case: Case, helds: Any, _: object) -> tuple[Case, None]:
        estimates.append(needed_bytes(case, helds))
        allow((before + estimates[-1]) / total, device)
        return case, None

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gemmgen.verify.verification.fitted", limit)
            found = verify(module, source, [shape], repeats=2)
        assert found.passed, "\n".join(map(str, found.failures))
        assert torch.cuda.max_memory_reserved(device) - before <= max(estimates)
    finally:
        allow(1.0, device)


@pytest.mark.gpu
def test_on_a_gpu_memory_that_runs_out_has_its_name() -> None:
    source = load_spec(spec_file("h100_bf16"))
    device = gpu_of(source)

    def hungry(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        del b, out
        free, total = torch.cuda.mem_get_info(device)
        return torch.empty(free + total, dtype=torch.uint8, device=a.device)

    module: Any = type("Fake", (), {"matmul": staticmethod(hungry)})
    found = verify_numbers(module, source, [(64, 64, 64)])
    assert [failure.fault for failure in found.failures] == [OUT_OF_MEMORY]
    assert not context_lost()


def gpu_of(source: SpecFile) -> torch.device:
    """Return the GPU; skip the test if there is none for the spec."""
    try:
        return require_gpu(source.request.gpu.architecture)
    except GemmgenError as error:
        pytest.skip(str(error))


@contextmanager
def filled(device: torch.device, leaving: int) -> Generator[None]:
    """Keep the memory of a GPU in use, but for some bytes."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.empty(max(0, free - leaving), dtype=torch.uint8, device=device)
    try:
        yield
    finally:
        del held
        torch.cuda.empty_cache()
