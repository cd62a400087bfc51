"""problem: inputs of every dtype, the exact result of every formula, and limits that wrong results exceed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from drawn import integer_inputs, random_inputs
from right_kernel import CHAINS, CPU, KINDS, SHAPE, generator, kernel, module_of, spec_of, written_out
from torch import Tensor

from gemmgen.hardware import FP8
from gemmgen.module import MatmulFunction
from gemmgen.numerics.drawing import is_exact
from gemmgen.numerics.encoding import (
    TORCH_DTYPES,
    DType,
    bits,
    not_finite,
    poison,
    rounded,
    rounded_to_tf32,
    saturated,
)
from gemmgen.numerics.matrices import Matrix
from gemmgen.numerics.reference import reference
from gemmgen.spec import SpecFile
from gemmgen.verify import verify

pytestmark = pytest.mark.quick


def failures(spec: SpecFile, matmul: MatmulFunction, shape: tuple[int, int, int] = SHAPE) -> set[str]:
    verification = verify(module_of(matmul), spec, [shape], repeats=1, device="cpu")
    return {check.what for check in verification.failures}


# --- whole verifications


@pytest.mark.parametrize(("a", "d"), KINDS)
@pytest.mark.parametrize("ops", [(), *CHAINS], ids="-".join)
def test_a_right_kernel_of_every_kind_passes(a: DType, d: DType, ops: tuple[str, ...]) -> None:
    spec = spec_of(a, d) if d == "int32" else spec_of(a, d, *ops, c="fp32" if ops else "")
    for shape in (SHAPE, (1, 8, 16), (13, 21, 40)):
        assert failures(spec, kernel(spec), shape) == set()


@pytest.mark.parametrize("majors", ["km", "mk", "mm"])
def test_majors_say_how_operands_lie_in_memory(majors: str) -> None:
    spec = spec_of(majors=majors)
    inputs = random_inputs((24, 40, 56), spec.problem, generator(), guarded=True)
    assert inputs.shape == (24, 40, 56)
    assert inputs.a.stride(1 if majors[0] == "k" else 0) == 1
    assert inputs.b.stride(0 if majors[1] == "k" else 1) == 1
    assert failures(spec, kernel(spec)) == set()


TERMS = ("row_scale", "column_scale", "row_bias", "column_bias", "residual")


@pytest.mark.parametrize(("a", "d"), [kind for kind in KINDS if kind[1] != "int32"])
@pytest.mark.parametrize("missing", TERMS)
def test_a_missing_term_of_any_kind_is_found(a: DType, d: DType, missing: str) -> None:
    without = kernel(spec_of(a, d, *(op for op in TERMS if op != missing)))
    left_out = "c" if missing == "residual" else missing

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor) -> Tensor:
        return without(a, b, out=out, **{name: x for name, x in extras.items() if name != left_out})

    assert "out=: relative error" in failures(spec_of(a, d, *TERMS), matmul)


@pytest.mark.parametrize(("alpha", "beta"), [(-1.0, None), (0.5, 2.0), (None, -1.0)])
def test_factors_are_part_of_the_result(alpha: float | None, beta: float | None) -> None:
    spec, plain = spec_of(c="bf16", alpha=alpha, beta=beta), spec_of(c="bf16")
    assert failures(spec, kernel(spec)) == set()
    assert "out=: relative error" in failures(spec, kernel(plain))


def test_the_order_of_operations_is_part_of_the_result() -> None:
    spec, other = spec_of("bf16", "bf16", "row_bias", "relu"), spec_of("bf16", "bf16", "relu", "row_bias")
    assert "out=: relative error" in failures(spec, kernel(other))


def test_a_gelu_of_the_other_kind_is_found_in_fp32() -> None:
    spec, other = spec_of("tf32", "fp32", "gelu_erf"), spec_of("tf32", "fp32", "gelu_tanh")
    assert failures(spec, kernel(spec)) == set()
    assert "out=: relative error" in failures(spec, kernel(other))


def test_int8_must_be_exact() -> None:
    def spoil(x: Tensor) -> Tensor:
        x[3, 5] += 1
        return x

    spec = spec_of("int8", "int32")
    runs = ("own output", "out=", "strided")
    whats = ("relative error", "worst element")
    expected = {f"{run}: {what}" for run, what in itertools.product(runs, whats)}
    assert failures(spec, kernel(spec, spoil)) == expected


def test_an_integer_that_is_not_written_is_found() -> None:
    spec = spec_of("int8", "int32")

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        d = torch.empty(a.shape[0], b.shape[1], dtype=torch.int32) if out is None else out
        kept = d[1, 1].clone()
        kernel(spec)(a, b, out=d)
        d[1, 1] = kept
        return d

    assert "out=: elements not finite" in failures(spec, matmul)


# --- dtypes


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_poison_shows_what_is_written_whatever_the_type(dtype: DType) -> None:
    matrix = Matrix.poisoned(3, 13, dtype, CPU, guarded=True)
    assert (matrix.written, matrix.written_outside) == (0, 0)
    assert matrix.view.stride(0) * matrix.view.element_size() % 16 == 0
    assert matrix.view.storage_offset() * matrix.view.element_size() % 16 == 0
    matrix.view.fill_(1.0)
    assert (matrix.written, matrix.written_outside) == (39, 0)
    matrix.storage[0, 0] = 1.0
    assert matrix.written_outside == 1


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "e4m3", "e5m2", "int32"])
def test_what_is_poison_still_is_not_finite(dtype: DType) -> None:
    element = TORCH_DTYPES[dtype]
    matrix = torch.ones(4, 4).to(element)
    assert not_finite(matrix) == 0
    matrix[1, 2] = poison(element)
    assert not_finite(matrix) == 1


def test_elements_are_counted_in_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.zeros(7, 5)
    matrix[0, 1] = matrix[3, 4] = math.nan
    matrix[6] = math.inf
    for chunk in (1, 5, 12, 35, 1000):
        monkeypatch.setattr("gemmgen.numerics.encoding.CHUNK_ELEMENTS", chunk)
        assert not_finite(matrix) == 7
        assert not_finite(matrix[:, :2]) == 3
        assert not_finite(matrix[1:3]) == not_finite(matrix[:0]) == 0


def test_no_product_of_int8_reaches_the_poison() -> None:
    assert -128 * 127 * 132_103 > poison(torch.int32) >= -128 * 127 * 132_105


def test_8_bit_floats_saturate_and_keep_nan() -> None:
    exact = torch.tensor([500.0, -math.inf, math.nan, 1e6], dtype=torch.float64)
    e4m3, e5m2 = (rounded(exact, TORCH_DTYPES[dtype]).float() for dtype in FP8)
    assert torch.equal(e4m3[:2], torch.tensor([448.0, -448.0]))
    assert torch.equal(e4m3.isnan(), torch.tensor([False, False, True, False]))
    assert e5m2[3].item() == 57344.0
    assert torch.equal(saturated(exact[:2], torch.float16), exact[:2])


def test_tf32_rounds_to_nearest_even() -> None:
    # What TMA made of these on an H200; ulp is 2**-10.
    given = [1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-11), -0.0, math.inf, 1 + 2**-11 + 2**-20]
    expected = torch.tensor([1.0, 1 + 2**-9, -1.0, -0.0, math.inf, 1 + 2**-10])
    assert torch.equal(bits(rounded_to_tf32(torch.tensor(given))), bits(expected))
    assert rounded_to_tf32(torch.tensor([math.nan])).isnan().all()


# --- inputs


@pytest.mark.parametrize(("a", "d"), KINDS)
def test_random_operands_have_their_type_and_size(a: DType, d: DType) -> None:
    inputs = random_inputs((64, 64, 256), spec_of(a, d).problem, generator())
    for operand in (inputs.a, inputs.b):
        assert operand.dtype == TORCH_DTYPES[a]
        # int8 is uniform from -128 to 127, or from -3 to 3 into a D of fp16 or fp8.
        size = 1.0 if a != "int8" else 73.9 if d == "int32" else 2.0
        assert operand.float().square().mean().sqrt().item() == pytest.approx(size, rel=0.05)


def test_what_surrounds_inputs_is_poison() -> None:
    ops = ("tensor_scale", "row_scale", "column_bias")
    inputs = random_inputs(
        (5, 7, 9), spec_of("bf16", "bf16", *ops, c="bf16").problem, generator(), guarded=True
    )
    assert list(inputs.extras) == ["c", "row_scale", "tensor_scale", "column_bias"]
    assert [tuple(x.shape) for x in inputs.extras.values()] == [(5, 7), (5,), (1,), (7,)]
    for tensor in inputs.tensors:
        assert tensor.storage_offset() * tensor.element_size() % 16 == 0
        assert not_finite(tensor) == 0
        storage = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
        assert not_finite(storage) == storage.numel() - tensor.numel()
    assert inputs.extras["tensor_scale"].dtype == torch.float32
    assert inputs.extras["column_bias"].dtype == torch.bfloat16


def test_biases_of_other_results_are_fp32() -> None:
    for a, d in (("e4m3", "e4m3"), ("int8", "fp32"), ("bf16", "fp32")):
        inputs = random_inputs(SHAPE, spec_of(a, d, "row_bias").problem, generator())
        assert inputs.extras["row_bias"].dtype == torch.float32


def test_every_term_counts_at_a_long_k() -> None:
    # The product of N(0, 1) is 64 large at K = 4096; an addend of N(0, 1) would be lost in bf16.
    inputs = random_inputs((32, 32, 4096), spec_of("bf16", "bf16", "residual").problem, generator())
    assert inputs.extras["c"].square().mean().sqrt().item() == pytest.approx(64, rel=0.1)
    scaled = spec_of("int8", "bf16", "tensor_scale", "residual", "gelu_erf")
    inputs = random_inputs((32, 32, 4096), scaled.problem, generator())
    assert inputs.extras["c"].square().mean().sqrt().item() == pytest.approx(1, rel=0.1)
    assert 0.3 < reference(inputs, scaled.problem).square().mean().sqrt().item() < 3
    normalized = random_inputs((32, 32, 4096), spec_of().problem, generator(), normalized=True)
    assert reference(normalized, spec_of().problem).square().mean().sqrt().item() == pytest.approx(1, rel=0.1)


def test_an_activation_sees_numbers_around_zero() -> None:
    spec = spec_of("bf16", "bf16", "column_bias", "silu")
    inputs = random_inputs((64, 64, 4096), spec.problem, generator())
    assert 0.3 < reference(inputs, spec.problem).square().mean().sqrt().item() < 3


@pytest.mark.parametrize(("a", "d"), KINDS)
def test_small_integers_are_computed_exactly_in_fp32(a: DType, d: DType) -> None:
    ops = () if d == "int32" else ("row_scale", "column_bias", "residual", "tensor_scale", "relu")
    spec = spec_of(a, d, *ops, alpha=None if d == "int32" else -0.5)
    assert is_exact(spec.problem)
    inputs = integer_inputs((40, 48, 640), spec.problem, generator())
    exact = rounded(reference(inputs, spec.problem), TORCH_DTYPES[d])
    assert torch.equal(
        bits(exact), bits(rounded(written_out(spec, inputs.a, inputs.b, **inputs.extras), exact.dtype))
    )


def test_long_sums_of_small_integers_are_exact_in_fp16() -> None:
    shape = 64, 64, 65_536
    narrow = integer_inputs(shape, spec_of(accumulator="fp16").problem, generator())
    for inputs, fits in ((narrow, True), (integer_inputs(shape, spec_of().problem, generator()), False)):
        assert ((inputs.a.float() @ inputs.b.float()).abs().max().item() < 2_048) is fits


def test_some_results_are_exact_for_no_integers() -> None:
    assert not is_exact(spec_of("bf16", "bf16", "silu").problem)
    assert not is_exact(spec_of(alpha=0.1).problem)
    assert not is_exact(spec_of(c="bf16", beta=1e6).problem)
    assert is_exact(spec_of(c="bf16", alpha=-1.0, beta=0.25).problem)
    assert is_exact(spec_of("bf16", "bf16", "residual", beta=0.1).problem)  # beta is not used
