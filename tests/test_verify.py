"""verify: right modules pass, each kind of wrong one fails the check that is there for it."""

from __future__ import annotations

import inspect
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from drawn import random_inputs
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from modules import SPECS, module_file, spec_file
from told import refusal
from torch import Tensor

from gemmgen.bench.machine import CudaMachine
from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import DTYPES
from gemmgen.module import MatmulFunction, import_generated
from gemmgen.numerics.case import Case
from gemmgen.numerics.encoding import TORCH_DTYPES, DType, not_finite
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Matrix, takes_out
from gemmgen.numerics.reference import TOLERANCES, Check, deviation, reference
from gemmgen.numerics.side import CheckGroup
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.planner import plan_spec
from gemmgen.spec import Spec, SpecFile, load_spec
from gemmgen.verify import ACCEPTANCE_SHAPES, Verification, default_shapes, verify, verify_numbers
from gemmgen.verify.shapes import (
    LARGE_SHAPE,
    LARGE_SUMS_BYTES,
    acceptance_shapes,
    fitting,
    large_shape,
    single_tile,
)
from gemmgen.verify.verification import given_output, run_checks

ROOT = Path(__file__).parent.parent
RAGGED = (13, 24, 40)
NO_OUT = (13, 21, 40)
"""Rows of D of 42 bytes in 16 bits and of 84 in fp32, neither a multiple of 16."""
CPU = torch.device("cpu")


def spec_of(
    d: str = "bf16", operand: str = "bf16", *, b: str = "", c: str = "", **fields: object
) -> SpecFile:
    operands: dict[str, object] = {
        "a": {"dtype": operand, "major": "k"},
        "b": {"dtype": b or operand, "major": "k"},
        "d": {"dtype": d},
    }
    if c:
        operands["c"] = {"dtype": c}
    return SpecFile.of(Spec.model_validate({"title": "t", "target": "h200", "operands": operands, **fields}))


def module_of(matmul: MatmulFunction) -> ModuleType:
    module = ModuleType("fake")
    module.__dict__["matmul"] = matmul
    return module


def own_d(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A D as the generated wrapper allocates it: the view of rows that are padded to 16 bytes."""
    m, n, dtype = a.shape[0], b.shape[1], dtype or a.dtype
    unit = 16 // dtype.itemsize
    return torch.empty(m, -(-n // unit) * unit, dtype=dtype, device=a.device)[:, :n]


def refuse_unaligned(out: Tensor | None) -> None:
    """Refuse what the generated wrapper refuses."""
    if out is not None and out.shape[1] * out.element_size() % 16:
        raise ValueError("out must have rows of whole 16-byte units")


def right_matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    refuse_unaligned(out)
    d = own_d(a, b) if out is None else out
    return d.copy_(a.double() @ b.double())


def careless_matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Right, but any ``out`` will do."""
    d = own_d(a, b) if out is None else out
    return d.copy_(a.double() @ b.double())


def spoiled(spoil: Callable[[Tensor, Tensor], object]) -> ModuleType:
    """A module that computes D and then applies ``spoil(a, out)``."""

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        d = right_matmul(a, b, out=out)
        spoil(a, d)
        return d

    return module_of(matmul)


def failures(
    module: ModuleType,
    shape: tuple[int, int, int] = RAGGED,
    repeats: int = 3,
    spec: SpecFile | None = None,
    *,
    deterministic: bool = True,
) -> set[str]:
    verification = verify(
        module, spec or spec_of(), [shape], repeats=repeats, device="cpu", deterministic=deterministic
    )
    assert verification.passed == (not verification.failures)
    return {check.what for check in verification.failures}


@pytest.mark.parametrize("d", ["bf16", "fp16", "fp32"])
def test_a_right_module_passes(d: DType) -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        refuse_unaligned(out)
        d_matrix = own_d(a, b, TORCH_DTYPES[d]) if out is None else out
        return d_matrix.copy_(a.double() @ b.double())

    shapes = [RAGGED, (1, 8, 16), NO_OUT]
    verification = verify(module_of(matmul), spec_of(d), shapes, repeats=3, device="cpu")
    assert verification.failures == ()
    assert verification.passed
    # Own output 2 + 3, out= 1 + 3, strided 1 + 3, special values 3, repeated 1; where there is no out=:
    # 2 + 3, 2, 3, 3, 1.
    assert len(verification.checks) == 2 * 17 + 14


def test_an_operand_that_the_spec_wants_mn_major_arrives_so() -> None:
    seen: list[tuple[int, ...]] = []

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        seen.append((a.stride(0), b.stride(1)))
        return right_matmul(a, b, out=out)

    operands = {
        "a": {"dtype": "bf16", "major": "mn"},
        "b": {"dtype": "bf16", "major": "mn"},
        "d": {"dtype": "bf16"},
    }
    spec = SpecFile.of(Spec.model_validate({"title": "t", "target": "h200", "operands": operands}))
    assert verify(module_of(matmul), spec, [RAGGED], repeats=1, device="cpu").passed
    assert set(seen) == {(1, 1)}


def test_an_unwritten_element_is_found() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        out = own_d(a, b) if out is None else out
        kept = out[-1, -1].clone()
        right_matmul(a, b, out=out)
        out[-1, -1] = kept
        return out

    assert {"out=: elements not finite", "strided: elements not finite"} <= failures(module_of(matmul))


def test_a_write_outside_the_view_is_found() -> None:
    def spoil(a: Tensor, out: Tensor) -> None:
        if out.storage_offset() > 0:
            out.as_strided((1, 1), (1, 1), out.storage_offset() - 1).fill_(0.0)

    assert failures(spoiled(spoil)) == {"strided: elements written outside"}


def test_a_read_outside_an_operand_is_found() -> None:
    def spoil(a: Tensor, out: Tensor) -> None:
        if a.storage_offset() > 0:
            beside = a.as_strided((a.shape[0], 1), a.stride(), a.storage_offset() + a.shape[1])
            out.add_(beside)

    assert {"strided: elements not finite", "strided: relative error"} <= failures(spoiled(spoil))


def test_one_percent_is_too_much() -> None:
    assert "out=: relative error" in failures(spoiled(lambda a, out: out.mul_(1.01)))


def test_one_wrong_element_of_many_is_found() -> None:
    # Wrong by about sqrt(64) among 512 * 512 elements of that size: 1 / 512 = 2e-3 of the norm, within 4e-3.
    def spoil(a: Tensor, out: Tensor) -> None:
        out[100, 100] += 8.0

    expected = {f"{run}: worst element" for run in ("own output", "out=", "strided")}
    assert failures(spoiled(spoil), (512, 512, 64), repeats=1) == expected


def test_a_single_bit_that_changes_between_runs_is_found() -> None:
    calls: list[int] = []

    def spoil(a: Tensor, out: Tensor) -> None:
        calls.append(1)
        out.view(torch.int16)[0, 0] += len(calls) % 2

    assert failures(spoiled(spoil), repeats=4) == {"repeated: runs of 4 that differ"}


@pytest.mark.parametrize(("bits", "found"), [(1, False), (128, True)])
def test_of_sums_that_are_added_up_as_they_come_runs_may_differ_by_their_rounding(
    bits: int, found: bool
) -> None:
    calls: list[int] = []

    def spoil(a: Tensor, out: Tensor) -> None:
        if not out.storage_offset():  # `strided` has its numbers checked
            calls.append(1)
            out.view(torch.int16)[:40] += bits * (len(calls) == 8)

    expected = {"repeated: relative difference of 6 runs"} if found else set[str]()
    assert failures(spoiled(spoil), repeats=6, deterministic=False) == expected
    assert len(calls) > 8


def test_a_spec_that_also_allows_sums_as_they_come_loosens_nothing_of_a_plan_of_ordered_ones() -> None:
    calls: list[int] = []

    def spoil(a: Tensor, out: Tensor) -> None:
        calls.append(1)
        out.view(torch.int16)[0, 0] += len(calls) % 2

    spec = spec_of(search={"schedule.reduction": ["ordered", "atomic"]})
    assert failures(spoiled(spoil), repeats=4, spec=spec) == {"repeated: runs of 4 that differ"}


@pytest.mark.parametrize(
    ("dtype", "taken"), [("bf16", (8, 16, 4096, 4104)), ("fp16", (8, 16)), ("fp32", (4, 8, 12, 4100))]
)
def test_an_out_is_taken_where_its_rows_are_whole_units_of_16_bytes(
    dtype: DType, taken: tuple[int, ...]
) -> None:
    # 16 bytes are 8 elements of 16 bits and 4 of 32; around each multiple there is none within two elements.
    for columns in taken:
        assert takes_out(columns, TORCH_DTYPES[dtype])
        for beside in (columns - 2, columns - 1, columns + 1, columns + 2):
            assert not takes_out(beside, TORCH_DTYPES[dtype])
    assert takes_out(12, TORCH_DTYPES[dtype]) == (dtype == "fp32")  # 24 bytes or 48


def test_where_no_out_is_taken_one_is_offered_and_all_other_runs_are_without() -> None:
    given: list[bool] = []

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        given.append(out is not None)
        return right_matmul(a, b, out=out)

    assert failures(module_of(matmul), NO_OUT, repeats=5) == set()
    # Own output; out=; strided; special values; repeated, 1 + 5.
    assert given == [False, True, False, False, *[False] * 6]
    given.clear()
    assert failures(module_of(matmul), RAGGED, repeats=5) == set()
    assert given == [False, True, True, True, *[True] * 6]


def test_an_out_that_is_accepted_and_written_past_is_found() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        d = careless_matmul(a, b, out=out)
        behind = d.as_strided((d.shape[0], -d.shape[1] % 8), d.stride(), d.storage_offset() + d.shape[1])
        behind.zero_()  # what TMA does: rows of 21 are 3 short of a whole unit
        return d

    verification = verify(module_of(matmul), spec_of(), [NO_OUT], repeats=3, device="cpu")
    accepted, outside = verification.failures
    assert accepted.what.startswith("out=: accepted")
    assert (outside.what, outside.measured) == ("out=: elements written outside", 39)  # 13 rows of 3
    assert failures(module_of(matmul), RAGGED) == set()


def test_an_out_that_is_accepted_fails_however_it_is_written() -> None:
    (found,) = failures(module_of(careless_matmul), NO_OUT)
    assert found.startswith("out=: accepted")


def test_an_out_that_is_refused_after_it_was_written_is_found() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        d = careless_matmul(a, b, out=out)
        refuse_unaligned(out)
        return d

    verification = verify(module_of(matmul), spec_of(), [NO_OUT], repeats=3, device="cpu")
    (found,) = verification.failures
    assert (found.what, found.measured) == ("out=: elements written though refused", 13 * 21)


def test_a_refusal_is_a_value_error() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        try:
            return right_matmul(a, b, out=out)
        except ValueError as error:
            raise RuntimeError(str(error)) from error

    verification = verify(module_of(matmul), spec_of(), [NO_OUT], repeats=1, device="cpu")
    (found,) = verification.failures
    assert (found.shape, found.what) == (NO_OUT, "out=")
    assert (found.detail or "").startswith("RuntimeError: ")


def test_an_out_that_tma_can_write_must_not_be_refused() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        if out is not None:
            raise ValueError("no out")
        return right_matmul(a, b)

    assert failures(module_of(matmul), RAGGED) == {"out=", "strided", "special values", "repeated"}
    assert failures(module_of(matmul), NO_OUT) == set()


def test_wrong_numbers_are_found_where_no_out_is_taken() -> None:
    module = spoiled(lambda a, out: out.mul_(1.01))
    assert {"own output: relative error", "strided: relative error"} <= failures(module, NO_OUT)
    once = verify_numbers(module, spec_of(), [NO_OUT], device="cpu")
    assert once.failures[0].what == "once: relative error"


@pytest.mark.sample(20)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_generated_wrapper_takes_and_allocates_what_verify_expects(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, spec = import_generated(module_file(path.stem)), load_spec(path)
    dtype = spec.problem.d.name

    def launch(*_: object) -> None:
        """Nothing is computed here."""

    on_a_fake_gpu(monkeypatch, (10, 0) if path.stem.startswith("b200") else (9, 0))
    launch_into(module, launch)
    copies = spec.problem.copies_misaligned
    if copies:
        monkeypatch.setattr(module.call, "copy", launch)
    _, most_n, most_k = single_tile(spec) or (5, 4097, 128)
    for n in filter(range(most_n + 1).__contains__, (*range(1, 41), 4095, 4096, 4097)):
        if n % TensorAccess(spec.problem).n_multiple:
            continue
        inputs = random_inputs((5, n, min(most_k, 128)), spec.problem, torch.Generator().manual_seed(n))
        if spec.problem.packs_scales:
            inputs = inputs.packed(module.pack_scales)
        extras = {name: tensor.as_subclass(Cuda) for name, tensor in inputs.extras.items()}
        inputs = replace(inputs, a=inputs.a.as_subclass(Cuda), b=inputs.b.as_subclass(Cuda), extras=extras)
        # As many bytes as the poison that lies there before, so that torch's allocator hands out its block.
        width = n * spec.problem.d_blocks
        poison = Matrix.poisoned(5, width, dtype, CPU)
        own = inputs.call(module.matmul)
        assert own.untyped_storage().nbytes() == poison.storage.nbytes
        assert own.stride() == poison.view.stride()
        given = Matrix.poisoned(5, width, dtype, CPU, guarded=True).view.as_subclass(Cuda)
        try:
            inputs.call(module.matmul, given)
            taken = True
        except ValueError:
            taken = False
        assert taken == (copies or takes_out(width, TORCH_DTYPES[dtype]))


def test_another_tensor_than_out_is_found() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        return right_matmul(a, b, out=out).clone()

    assert failures(module_of(matmul)) == {"out=: not what is returned"}


def test_a_column_major_result_is_found() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        return right_matmul(a, b, out=out) if out is not None else right_matmul(a, b).T.contiguous().T

    assert failures(module_of(matmul)) == {"own output: not row-major"}


def test_a_module_that_raises_fails_its_checks_and_nothing_else() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        if out is None:
            raise ValueError("no\nluck")
        return right_matmul(a, b, out=out)

    verification = verify(module_of(matmul), spec_of(), [RAGGED], repeats=1, device="cpu")
    assert [str(check) for check in verification.failures] == ["13x24x40 own output: ValueError: no"]


def test_nothing_runs_on_a_lost_device() -> None:
    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def cases() -> Iterator[Case]:
        for shape in (RAGGED, (8, 8, 8)):
            yield Case(
                matmul,
                shape,
                spec_of().problem,
                torch.Generator().manual_seed(0),
                repeats=1,
                promote_k=None,
                sides=(),
            )

    told: list[str] = []
    groups = (CheckGroup("first", given_output), CheckGroup("second", given_output))
    checks = tuple(run_checks(cases(), groups, lambda: True, told.append))
    assert told == ["13x24x40 first"]
    first, *others = (check.detail or "" for check in checks if isinstance(check, Check))
    assert first == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert len(others) == 3
    assert all(each.startswith("not run: ") for each in others)
    assert not any(check.passed for check in checks if isinstance(check, Check))


def test_every_check_gets_other_inputs() -> None:
    seen: set[float] = set()

    def spoil(a: Tensor, out: Tensor) -> None:
        seen.add(a[0, 0].item())

    verify_numbers(spoiled(spoil), spec_of(), [RAGGED, RAGGED], device="cpu")
    assert len(seen) == 2


def test_the_same_seed_draws_the_same_inputs() -> None:
    spec = spec_of(c="bf16", epilogue={"ops": ["row_scale", "column_bias"]})
    first, second = (
        random_inputs((3, 5, 7), spec.problem, torch.Generator().manual_seed(7)) for _ in range(2)
    )
    assert len(first.tensors) == 5
    assert all(map(torch.equal, first.tensors, second.tensors))


def test_tolerances_lie_between_rounding_and_a_wrong_result() -> None:
    exact = torch.randn(1000, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eye = torch.eye(1000, dtype=torch.float64)
    for dtype, tolerance in TOLERANCES.items():
        if DTYPES[dtype].bits == 8:
            continue
        rounding = deviation(
            exact.to(TORCH_DTYPES[dtype]), Inputs(exact, eye, sides=()), spec_of(dtype).problem
        ).relative
        assert rounding * 2 < tolerance < 1e-2


def test_a_nan_passes_no_limit() -> None:
    found = deviation(
        torch.tensor([[math.nan]]), Inputs(torch.ones(1, 1), torch.ones(1, 1), sides=()), spec_of().problem
    )
    assert math.isnan(found.relative)
    assert math.isnan(found.worst_element)
    assert not Check((1, 1, 1), "relative error", math.nan, math.inf).passed


def test_the_reference_does_not_depend_on_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(c="fp32", epilogue={"ops": ["row_scale", "row_bias", "column_scale", "gelu_erf"]})
    inputs = random_inputs((17, 24, 40), spec.problem, torch.Generator().manual_seed(0))
    out = reference(inputs, spec.problem).bfloat16()
    whole = deviation(out, inputs, spec.problem)
    assert whole.relative < 4e-3
    monkeypatch.setattr("gemmgen.numerics.reference.CHUNK_BYTES", 5 * 24 * 8)  # five rows at a time
    chunked = deviation(out, inputs, spec.problem)
    assert chunked.relative == pytest.approx(whole.relative, rel=1e-12)
    assert chunked.worst_element == pytest.approx(whole.worst_element, rel=1e-12)


def test_rows_start_at_multiples_of_16_bytes() -> None:
    for guarded in (False, True):
        matrix = Matrix.poisoned(3, 13, "bf16", CPU, guarded=guarded)
        assert matrix.view.stride() == (32 if guarded else 16, 1)
        assert matrix.view.storage_offset() * 2 % 16 == 0
        assert not_finite(matrix.view) == 39
        assert (matrix.written, matrix.written_outside) == (0, 0)
        matrix.view.zero_()
        assert (matrix.written, matrix.written_outside) == (39, 0)
        matrix.storage.zero_()
        # Rows of 16 without a guard; with one, two more of them and 8 more elements on each side.
        written = 5 * 32 if guarded else 3 * 16
        assert (matrix.written, matrix.written_outside) == (written, written - 39)


def test_default_shapes_are_the_specs_and_then_the_acceptance_shapes() -> None:
    spec = spec_of(check={"shapes": [[256, 512, 384], [208, 416, 304]]})
    assert default_shapes(spec)[:3] == ((256, 512, 384), (208, 416, 304), (8192, 8192, 8192))
    assert len(default_shapes(spec)) == 1 + len(ACCEPTANCE_SHAPES)
    assert LARGE_SHAPE[0] * LARGE_SHAPE[1] > 2**31


def test_the_acceptance_shapes_are_these() -> None:
    assert set(ACCEPTANCE_SHAPES) == {
        (8192, 8192, 8192),
        (208, 416, 304),
        (2000, 1000, 2000),
        (1, 8, 16),
        (64, 64, 64),
        (4095, 4097, 4104),
        (300, 776, 392),
    }
    (no_out,) = (shape for shape in ACCEPTANCE_SHAPES if not takes_out(shape[1], torch.bfloat16))
    assert no_out == (4095, 4097, 4104)


def test_a_kernel_of_a_single_tile_is_verified_on_what_fits_the_tile() -> None:
    spec = spec_of(schedule={"kind": "single_tile"}, tile={"m": 64, "n": 128, "k": 64})
    assert single_tile(spec) == large_shape(spec) == (64, 128, 64)
    assert acceptance_shapes(spec) == (
        (64, 128, 64),
        (43, 86, 43),  # 64 - 21, 128 - 42
        (63, 127, 64),
        (1, 8, 16),
        (64, 64, 64),
    )
    assert single_tile(spec_of()) is None
    assert acceptance_shapes(spec_of()) == tuple(ACCEPTANCE_SHAPES)
    assert large_shape(spec_of()) == LARGE_SHAPE
    one_by_one = {"kind": "tiled", "splits": 16}
    assert large_shape(spec_of(schedule=one_by_one)) == (32768, 33024, 64)
    assert large_shape(spec_of(schedule={**one_by_one, "reduction": "atomic"})) == LARGE_SHAPE
    assert fitting([(64, 64, 64), (65, 1, 1)], (64, 128, 64)) == ((64, 64, 64),)
    assert fitting([(65, 1, 1)], None) == ((65, 1, 1),)


def test_what_a_single_tile_leaves_open_is_as_its_plan_has_it() -> None:
    spec = spec_of(schedule={"kind": "single_tile"}, tile={"m": 64})
    tile = single_tile(spec)
    assert tile is not None
    assert tile[0] == 64
    assert default_shapes(spec)[0] == tile


def test_a_verification_without_checks_has_not_passed() -> None:
    assert not Verification("cpu", ()).passed


def test_a_verification_is_json() -> None:
    checks = (Check((1, 2, 3), "x", math.nan, 1.0), Check((1, 2, 3), "y", None, 0, "not run"))
    told = json.loads(json.dumps(Verification("cpu", checks).as_dict(), allow_nan=False))
    assert told["passed"] is False
    assert told["checks"][0]["measured"] == "nan"
    assert told["checks"][1] == {
        "shape": [1, 2, 3],
        "what": "y",
        "measured": None,
        "limit": 0,
        "passed": False,
        "detail": "not run",
        "fault": "wrong-kernel",
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_clear_error() -> None:
    assert refusal(lambda: verify(module_of(right_matmul), spec_of())).code == "no-gpu"


def test_a_module_is_imported_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("def matmul(a, b, *, out=None):\n    return 1\n")
    before = (list(sys.path), set(sys.modules))
    module = import_generated(path)
    assert (sys.path, set(sys.modules)) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["kernel.py"]
    assert module.__name__ == "kernel"
    assert inspect.getsource(module.matmul) == path.read_text()  # what triton.jit does
    path.write_text("def matmul(a, b, *, out=None):\n    return 2\n")
    assert import_generated(path).matmul(0, 0) == 2


@pytest.mark.parametrize(
    ("source", "code", "line", "named"),
    [
        (None, "no-module", None, ""),
        ("x = 1\ny = (\n", "bad-module", 2, "SyntaxError"),
        ("x = 1\n\n1 / 0\n", "bad-module", 3, "ZeroDivisionError: division by zero"),
        ("matmul = 1\n", "bad-module", None, "`matmul`"),
    ],
)
def test_a_broken_module_is_one_diagnostic(
    tmp_path: Path, source: str | None, code: str, line: int | None, named: str
) -> None:
    path = tmp_path / "kernel.py"
    if source is not None:
        path.write_text(source)
    found = refusal(lambda: import_generated(path))
    assert (found.path, found.code, found.line) == (path.as_posix(), code, line)
    assert named in found.message


# --- On the GPU of its spec: every generated module, each in a process of its own, so that none can harm or
# stall the next. Those for a B200 are skipped on an H200, and the reverse.

# On each acceptance shape: an own D, a given one, operands and D with strided rows, NaN and infinities, 50
# repeats bit by bit, a graph and a side stream. N = 4097 takes no out=: a padded view is offered and must be
# refused untouched, and D is poisoned where the wrapper will allocate it, in a block of its size that is
# freed just before the call. POISON shows that the wrapper does get that block.
# A D of more than 2**31 elements needs most of a GPU's memory: one process at a time has one.
VERIFY = """
import sys
from pathlib import Path
import torch
from gemmgen.bench.machine import CudaMachine
from gemmgen.module import import_generated
from gemmgen.planner import plan_spec
from gemmgen.spec import load_spec
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.numerics.matrices import takes_out
from gemmgen.verify import verify, verify_large
from gemmgen.verify.shapes import acceptance_shapes
source = load_spec(Path(sys.argv[2]))
module, spec, plan = import_generated(Path(sys.argv[1])), source, plan_spec(source)
whole = verify(module, spec, repeats=50, deterministic=plan.deterministic)
torch.cuda.empty_cache()
with CudaMachine(torch.device("cuda", torch.cuda.current_device())).alone():
    large = verify_large(module, spec)
for verification in (whole, large):
    if not (verification.passed or verification is large and large.left_out):
        sys.exit("\\n".join(map(str, verification.failures)))
made = {(check.shape, check.what) for check in whole.checks}
exact = spec.problem.a.dtype.name == "int8"
differ = None if plan.deterministic else "relative difference"
for shape in acceptance_shapes(spec):
    taken = takes_out(shape[1], TORCH_DTYPES[spec.problem.d.name]) or spec.problem.copies_misaligned
    for what in (
        "own output: worst element",
        "out=: worst element" if taken else "out=: accepted, though TMA cannot write it alone",
        *([] if exact else ["special values: NaN or no NaN unlike torch"]),
        *(["packed a_scale: elements that differ"] if spec.problem.packs_scales else []),
        *(["a_scale by rows, arranged: elements that differ"] if spec.problem.scales_sums else []),
        "strided: worst element",
        f"repeated: {differ} of 50 runs" if differ else "repeated: runs of 50 that differ",
        f"cuda graph: {differ} of 50 runs" if differ else "cuda graph: runs of 50 that differ",
        f"side stream: {differ or 'elements that differ'}",
    ):
        assert (shape, what) in made, (shape, what)
"""
POISON = """
import sys
from pathlib import Path
import torch
from gemmgen.module import import_generated
from gemmgen.plan.access import TensorAccess
from gemmgen.spec import load_spec
from gemmgen.numerics.case import Case
from gemmgen.verify.shapes import fitting, single_tile
module, spec = import_generated(Path(sys.argv[1])), load_spec(Path(sys.argv[2]))
access = TensorAccess(spec.problem)
of_n, of_k = access.n_multiple, access.k_multiple
shapes = ((4095, 4097, 4104), (208, 413, 304), (1, 1, 16), (8192, 8191, 64))
shapes = tuple((m, -(-n // of_n) * of_n, -(-k // of_k) * of_k) for m, n, k in shapes)
for shape in fitting(shapes, single_tile(spec)):
    generator = torch.Generator("cuda").manual_seed(0)
    case = Case(module.matmul, shape, spec.problem, generator, repeats=1, promote_k=None, sides=())
    for guarded in (False, True):
        inputs = case.inputs(guarded=guarded)
        if spec.problem.packs_scales:  # packing scales in the call would take memory, perhaps this block
            inputs = inputs.packed(module.pack_scales)
        def bare(inputs):
            return inputs.call(case.matmul)
        # An `out` of a D with scales is fp32 here; a module takes none.
        for run in (bare, *([] if spec.problem.d_scale else [case.run]), case.run_alone) * 3:
            poison = case.poisoned_own().data_ptr()
            assert run(inputs).data_ptr() == poison, shape
"""
# The last shape has more tiles than a GPU has SMs or pairs of SMs, and more K steps than a ring has stages.
CONSAN = """
import sys
from pathlib import Path
import torch
import triton
from gemmgen.module import import_generated
from gemmgen.plan.access import TensorAccess
from gemmgen.spec import load_spec
from gemmgen.verify import verify_numbers
from gemmgen.verify.shapes import acceptance_shapes, single_tile
triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
module, spec = import_generated(Path(sys.argv[1])), load_spec(Path(sys.argv[2]))
multiple = TensorAccess(spec.problem).k_multiple
shapes = [(256, 512, 384), (208, 416, 304), (2304, 4352, 520)]
shapes = [(m, n, -(-k // multiple) * multiple) for m, n, k in shapes]
verification = verify_numbers(module, spec, acceptance_shapes(spec) if single_tile(spec) else shapes)
if not verification.passed:
    sys.exit("\\n".join(map(str, verification.failures)))
"""


def spec_path(module: Path) -> Path:
    return spec_file(module.stem)


def skip_without_gpu(spec: SpecFile) -> None:
    """Skip unless this machine has the GPU of the spec's target, a B200 for a Blackwell spec."""
    try:
        require_gpu(spec.request.gpu.architecture)
    except GemmgenError as error:
        pytest.skip(str(error))


def run_on_gpu(script: str, module: Path, **environment: str) -> None:
    """Run a script with the module and its spec as arguments; fail with all that it said."""
    done = start_on_gpu(script, module, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


def start_on_gpu(script: str, module: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    skip_without_gpu(load_spec(spec_path(module)))
    return subprocess.run(
        [sys.executable, "-c", script, str(module), str(spec_path(module))],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,  # the slowest module takes half of it to compile under ConSan, a cluster of four CTAs
        check=False,
    )


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_what_a_large_d_needs_has_room_and_more_elements_than_32_bits_count(path: Path) -> None:
    source = load_spec(path)
    m, n, _ = large_shape(source)
    plan = plan_spec(source)
    kept = plan.partials if isinstance(plan, WgmmaKernel) and plan.splits > 1 else 1
    if single_tile(source) is None:
        assert kept * m * n * source.problem.d_blocks > 2**31
    if kept == 1:
        assert m * n * source.problem.d_blocks < 2**32
    if kept > 1:
        assert kept * m * n * plan.problem.accumulator.bytes <= LARGE_SUMS_BYTES


def test_one_process_at_a_time_has_a_large_d(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    failed = Verification("gpu", (Check((1, 8, 16), "once", None, 0, "too large"),))

    def checked(step: str) -> Callable[..., Verification]:
        def check(*_: object, **__: object) -> Verification:
            steps.append(step)
            return failed

        return check

    @contextmanager
    def alone(_: CudaMachine) -> Generator[None]:
        steps.append("others wait")
        yield
        steps.append("others go on")

    monkeypatch.setattr(CudaMachine, "alone", alone)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: steps.append("memory is free"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("gemmgen.verify.verify", checked("verify"))
    monkeypatch.setattr("gemmgen.verify.verify_large", checked("large"))
    stem = "h100_bf16"
    monkeypatch.setattr(sys, "argv", ["-c", str(module_file(stem)), str(spec_file(stem))])
    with pytest.raises(SystemExit, match="1x8x16 once: too large"):
        exec(VERIFY, {})
    assert steps == ["verify", "memory is free", "others wait", "large", "others go on"]


@pytest.mark.gpu
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_generated_module_is_right(path: Path) -> None:
    run_on_gpu(VERIFY, module_file(path.stem))


@pytest.mark.gpu
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_generated_wrapper_allocates_d_where_the_poison_lay(path: Path) -> None:
    run_on_gpu(POISON, module_file(path.stem))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [NO_OUT, RAGGED])
def test_an_element_of_its_own_output_that_a_kernel_leaves_is_found_on_the_gpu(
    shape: tuple[int, int, int],
) -> None:
    skip_without_gpu(spec_of())

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        refuse_unaligned(out)
        d = own_d(a, b) if out is None else out
        d[:-1] = (a[:-1].double() @ b.double()).to(d.dtype)
        d[-1, :-1] = (a[-1:].double() @ b[:, :-1].double()).to(d.dtype)[0]
        return d

    verification = verify(module_of(matmul), spec_of(), [shape], repeats=3)
    found = {check.what: check.measured for check in verification.failures}
    runs = ("own output", "strided") if shape == NO_OUT else ("own output", "out=", "strided")
    assert {run: found[f"{run}: elements not finite"] for run in runs} == dict.fromkeys(runs, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_generated_module_is_clean_under_consan(path: Path) -> None:
    run_on_gpu(CONSAN, module_file(path.stem), TRITON_INSTRUMENTATION_MODE="consan")
