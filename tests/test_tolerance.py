"""Limits that right kernels keep and wrong ones exceed; NaN, infinities and zeros where torch has them."""

from __future__ import annotations

import math

import pytest
import torch
from drawn import random_inputs
from right_kernel import CHAINS, FLOATS, SCALED, SHAPE, exact_operand, generator, kernel, spec_of
from torch import Tensor

from gemmgen.module import MatmulFunction
from gemmgen.numerics.case import Case, special_values
from gemmgen.numerics.encoding import TORCH_DTYPES, DType, rounded
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import deviation, reference, tolerance
from gemmgen.spec import SpecFile

pytestmark = pytest.mark.quick

# --- limits


def limit(spec: SpecFile, k: int = 8192, elements: int = 2**60) -> float:
    return tolerance(spec.problem, (1, elements, k), spec.promote_k).relative


def test_limits_of_known_kinds_have_not_moved() -> None:
    assert (limit(spec_of()), limit(spec_of("fp16", "fp16")), limit(spec_of("bf16", "fp32"))) == (
        4e-3,
        1e-3,
        1e-5,
    )
    # At most four standard deviations of the result may be rounded: 4 * 2**-8 of bf16, as much as before.
    assert tolerance(spec_of().problem, (8192, 8192, 8192), None).worst_element + 4 * 2**-8 <= 8 * 4e-3


def test_limits_grow_with_what_the_accumulator_sums() -> None:
    # sqrt(8192) = 90.5, sqrt(128) = 11.3.
    assert limit(spec_of("e4m3", "bf16")) == pytest.approx(4e-3 + 9.05e-3, rel=1e-3)
    assert limit(spec_of("e4m3", "bf16", promote_k=128)) == pytest.approx(4e-3 + 1.13e-3, rel=1e-2)
    assert limit(spec_of("e4m3", "bf16", promote_k=128), 64) == pytest.approx(4e-3 + 8e-4)
    assert limit(spec_of("fp16", "fp16", accumulator="fp16")) == pytest.approx(1e-3 + 9.06e-3, rel=1e-3)
    # 1,024 instructions of tf32, 2,048 of bf16; 256 and 512 are in the tolerance of an fp32 D.
    assert limit(spec_of("tf32", "fp32")) == pytest.approx(1e-5 + 768 * 4e-8)
    assert limit(spec_of("bf16", "fp32"), 32768) == pytest.approx(1e-5 + 1536 * 4e-8)
    assert limit(spec_of("bf16", "fp32", promote_k=64), 32768) == 1e-5
    assert limit(spec_of("int8", "int32")) == 0
    assert limit(spec_of("int8", "fp32")) == 1e-5


@pytest.mark.parametrize(
    ("spec", "measured"),
    [
        (spec_of("e4m3", "fp32", b="e5m2"), {512: 2.7e-4, 2048: 7.0e-4, 8192: 1.74e-3, 32768: 4.2e-3}),
        (spec_of("e4m3", "fp32", promote_k=128), {128: 1.03e-4, 32768: 1.02e-4}),
        (spec_of("fp16", "fp16", accumulator="fp16"), {128: 4.4e-4, 2048: 1.67e-3, 8192: 3.3e-3}),
        (spec_of("tf32", "fp32"), {128: 3.3e-7, 2048: 4.8e-6, 4104: 9.7e-6, 8192: 1.86e-5}),
        (spec_of("bf16", "fp32"), {128: 1.2e-7, 2048: 2.1e-6, 8192: 9.1e-6}),
    ],
    ids=["fp8", "promoted", "fp16", "tf32", "bf16"],
)
def test_limits_lie_between_cublas_and_a_step_left_out(spec: SpecFile, measured: dict[int, float]) -> None:
    """Measured on an H200 with torch 2.11, M = N = 1024, inputs of N(0, 1), operands rounded before."""
    for k, relative in measured.items():
        step = 128 // torch.empty((), dtype=TORCH_DTYPES[spec.problem.a.dtype.name]).element_size()
        assert relative < limit(spec, k) < math.sqrt(step / k) / 3


def test_few_elements_rounded_by_an_fp16_accumulator_keep_its_limit() -> None:
    """One instruction, whose sum is rounded, a bias and relu: 1,000 results of the fewest elements."""
    spec, elements, k = spec_of("fp16", "fp32", "row_bias", "relu", accumulator="fp16"), 8, 16
    draws = torch.randn(1_000, elements, k, 2, dtype=torch.float64, generator=generator())
    bias = torch.randn(1_000, 1, dtype=torch.float64, generator=generator())
    total = draws.prod(-1).sum(-1)
    exact = (total + bias).relu()
    error = (total.half() + bias).relu() - exact
    relative = (error.square().sum(1) / exact.square().sum(1)).sqrt()
    assert 10 < (relative > limit(spec, k)).sum() < 500
    assert (relative > limit(spec, k, elements)).sum() <= 2
    assert (relative > limit(spec, k, elements) / 3).sum() > 10


@pytest.mark.parametrize("d", ["e4m3", "e5m2"])
def test_rounding_to_8_bits_is_within_its_limit(d: DType) -> None:
    spec = spec_of("e4m3", d)
    inputs = random_inputs((256, 256, 128), spec.problem, generator())
    found = deviation(rounded(reference(inputs, spec.problem), TORCH_DTYPES[d]), inputs, spec.problem)
    assert found.relative * 2 < limit(spec, 128) < found.relative * 3
    assert found.worst_element < 1e-3  # rounding is not counted


def test_a_zero_result_is_right_or_infinitely_wrong() -> None:
    inputs = Inputs(torch.zeros(2, 2), torch.ones(2, 2), sides=())
    assert deviation(torch.zeros(2, 2), inputs, spec_of().problem).relative == 0
    assert deviation(torch.ones(2, 2), inputs, spec_of().problem).relative == math.inf


# --- limits of block-scaled products


def truncated_sum(products: Tensor, group: int) -> Tensor:
    """Sum products [..., K] as `tolerance` supposes: each group and the sum so far aligned, 14 bits kept."""
    total = torch.zeros(products.shape[:-1], dtype=torch.float64)
    for first in range(0, products.shape[-1], group):
        terms = torch.cat((products[..., first : first + group], total.unsqueeze(-1)), dim=-1)
        _, exponents = terms.abs().amax(dim=-1, keepdim=True).frexp()
        ulp = torch.exp2((exponents - 1 - 13).double())
        total = ((terms / ulp).trunc() * ulp).sum(-1)
    return total


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("k", [64, 128, 704, 2048])
def test_sums_of_14_bits_keep_the_limit_that_is_derived_from_them(kind: str, k: int) -> None:
    """Emulated, not measured: what Blackwell's tensor cores keep is not known to be less."""
    spec, shape = spec_of(kind, "fp32"), (32, 32, k)
    inputs = random_inputs(shape, spec.problem, generator())
    a, b = (exact_operand(inputs, spec, name) for name in "ab")
    group = 64 if kind in ("mxfp4", "nvfp4") else 32
    found = deviation(truncated_sum(a[:, None] * b, group), inputs, spec.problem)
    allowed = tolerance(spec.problem, shape, spec.promote_k)
    # The derivation says 1 / 2.7 of the limit; products of few bits, of e2m1 above all, lose less.
    assert found.relative < allowed.relative / 3
    assert found.worst_element < allowed.worst_element / 1.2
    if k == 2048:
        assert found.relative > allowed.relative / 20


@pytest.mark.parametrize("kind", SCALED)
def test_limits_of_scaled_products_are_those_of_fp8(kind: str) -> None:
    # sqrt(8192) = 90.5.
    assert limit(spec_of(kind)) == pytest.approx(4e-3 + 9.05e-3, rel=1e-3)


def test_dense_limits_are_those_of_hopper() -> None:
    for a, d in (("bf16", "bf16"), ("fp16", "fp16"), ("tf32", "fp32"), ("e4m3", "bf16")):
        shape = (256, 256, 8192)
        blackwell, hopper = spec_of(a, d, target="b200").problem, spec_of(a, d).problem
        assert tolerance(blackwell, shape, None) == tolerance(hopper, shape, None)


@pytest.mark.parametrize("kind", SCALED)
def test_a_block_whose_scale_is_twice_what_it_should_be_is_found(kind: str) -> None:
    spec, shape = spec_of(kind), (64, 64, 8192)
    inputs = random_inputs(shape, spec.problem, generator())
    vector = 8192 // inputs.extras["a_scale"].shape[1]
    exact, allowed = reference(inputs, spec.problem), tolerance(spec.problem, shape, spec.promote_k).relative
    scales = inputs.extras["a_scale"]
    scales[:, 7] = (scales[:, 7].float() * 2).to(scales.dtype)
    found = deviation(rounded(exact, torch.bfloat16), inputs, spec.problem).relative
    # sqrt(32 / 8192) = 6.3e-2, of a block of 16 4.4e-2; its own size varies.
    assert allowed * 2 < found < 2 * math.sqrt(vector / 8192)


# --- NaN, infinities and zeros


def specials(spec: SpecFile, matmul: MatmulFunction, shape: tuple[int, int, int] = SHAPE) -> set[str]:
    checks = special_values(Case(matmul, shape, spec.problem, generator(), 1, None, sides=()))
    return {check.what.removeprefix("special values: ") for check in checks if not check.passed}


@pytest.mark.parametrize(("a", "d"), FLOATS)
@pytest.mark.parametrize("ops", [(), *CHAINS], ids="-".join)
def test_nan_and_infinities_are_where_torch_has_them(a: DType, d: DType, ops: tuple[str, ...]) -> None:
    spec = spec_of(a, d, *ops)
    for shape in (SHAPE, (1, 8, 16), (2, 8, 16)):
        assert specials(spec, kernel(spec), shape) == set()


def test_a_nan_that_is_lost_is_found() -> None:
    def spoil(x: Tensor) -> Tensor:
        return torch.where(x.isnan(), 0.0, x)

    assert specials(spec_of(), kernel(spec_of(), spoil)) == {"NaN or no NaN unlike torch"}


def test_an_infinity_of_the_other_sign_is_found() -> None:
    def spoil(x: Tensor) -> Tensor:
        return torch.where(x.isinf(), x.abs(), x)

    assert specials(spec_of(), kernel(spec_of(), spoil)) == {"infinite or finite unlike torch"}


def test_a_negative_zero_is_found_where_torch_has_a_positive_one() -> None:
    def spoil(x: Tensor) -> Tensor:
        return torch.where(x == 0, -0.0, x)

    assert specials(spec_of(), kernel(spec_of(), spoil)) == {"zeros of another sign than torch's"}
    negated = spec_of(alpha=-1.0)
    assert specials(negated, kernel(negated)) == set()


def test_integers_have_no_special_values() -> None:
    spec = spec_of("int8", "int32")
    assert list(special_values(Case(kernel(spec), SHAPE, spec.problem, generator(), 1, None, sides=()))) == []
