"""problem: block-scaled operands, from inputs to the exact result and what is checked of one.

No Blackwell GPU has run any of it: right kernels are torch's.
"""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from drawn import integer_inputs, random_inputs
from right_kernel import (
    CHAINS,
    CPU,
    FLOATS,
    SCALED,
    SHAPE,
    VECTORS,
    exact_operand,
    generator,
    kernel,
    module_of,
    spec_of,
    written_out,
)
from torch import Tensor

from gemmgen.features.checking import sides_of
from gemmgen.module import MatmulFunction
from gemmgen.numerics.case import Case, row_major, special_values
from gemmgen.numerics.drawing import is_exact
from gemmgen.numerics.encoding import TORCH_DTYPES, bits, decoded, not_finite, rounded
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Matrix
from gemmgen.numerics.reference import reference
from gemmgen.spec import SpecFile
from gemmgen.verify import verify

pytestmark = pytest.mark.quick

RAGGED = (37, 40, 200)
"""K is 6.25 blocks of 32, or 12.5 of 16."""


def failures(spec: SpecFile, matmul: MatmulFunction, shape: tuple[int, int, int] = SHAPE) -> set[str]:
    verification = verify(module_of(matmul), spec, [shape], repeats=1, device="cpu")
    return {check.what for check in verification.failures}


def numbers(tensor: Tensor) -> list[float]:
    return cast("list[float]", tensor.double().flatten().tolist())  # pyright: ignore[reportUnknownMemberType]


# --- whole verifications


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("d", ["bf16", "fp32", "e4m3"])
def test_a_right_kernel_of_every_format_passes(kind: str, d: str) -> None:
    spec = spec_of(kind, d)
    multiple = 128 if "_by_" in kind else 1  # of K, where TMA pads
    for m, n, k in (SHAPE, RAGGED, (1, 8, 16), (130, 24, 704)):
        assert failures(spec, kernel(spec), (m, n, -(-k // multiple) * multiple)) == set()


@pytest.mark.parametrize(("a", "d"), [*FLOATS, ("e5m2", "fp32")])
def test_dense_problems_are_those_of_hopper(a: str, d: str) -> None:
    spec, hopper = spec_of(a, d, target="b200"), spec_of(a, d)
    inputs, expected = (random_inputs(RAGGED, either.problem, generator()) for either in (spec, hopper))
    assert torch.equal(bits(inputs.a), bits(expected.a))
    assert torch.equal(bits(inputs.b), bits(expected.b))
    assert failures(spec, kernel(spec), RAGGED) == set()


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("ops", CHAINS, ids="-".join)
def test_epilogues_of_scaled_products_pass(kind: str, ops: tuple[str, ...]) -> None:
    spec = spec_of(kind, "bf16", *ops)
    assert failures(spec, kernel(spec)) == set()


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("scale", ["a_scale", "b_scale"])
def test_scales_of_the_next_row_or_block_are_found(kind: str, scale: str) -> None:
    spec = spec_of(kind)
    right = kernel(spec)
    for dim in (0, 1):

        def matmul(a: Tensor, b: Tensor, *, dim: int = dim, out: Tensor | None = None, **x: Tensor) -> Tensor:
            moved = x[scale].view(torch.uint8).roll(1, dim).view(x[scale].dtype)
            return right(a, b, out=out, **{**x, scale: moved})

        assert "out=: relative error" in failures(spec, matmul, (40, 48, 128))


def test_halves_of_bytes_in_the_wrong_order_are_found() -> None:
    spec = spec_of("mxfp4")

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, **scales: Tensor) -> Tensor:
        return kernel(spec)(a << 4 | a >> 4, b, out=out, **scales)

    assert "out=: relative error" in failures(spec, matmul)


# --- inputs


@pytest.mark.parametrize("kind", SCALED)
def test_inputs_have_the_shapes_and_types_of_their_format(kind: str) -> None:
    spec = spec_of(kind, "bf16", "tensor_scale", c="bf16")
    inputs = random_inputs(RAGGED, spec.problem, generator(), guarded=True)
    assert inputs.shape == RAGGED
    assert list(inputs.extras) == ["a_scale", "b_scale", "c", "tensor_scale"]
    m, n, k = RAGGED
    for name, rows, stored in (("a", m, inputs.a), ("b", n, inputs.b.T)):
        dtype, scale_format = SCALED[kind][0 if name == "a" else 1]
        assert stored.shape == (rows, k // 2 if dtype == "e2m1" else k)
        assert stored.dtype == (torch.uint8 if dtype == "e2m1" else TORCH_DTYPES[cast(Any, dtype)])
        assert stored.stride(1) == 1
        scales = inputs.extras[f"{name}_scale"]
        assert scales.shape == (rows, math.ceil(k / VECTORS[scale_format]))
        assert scales.dtype == (torch.float8_e4m3fn if scale_format == "nvfp4" else torch.float8_e8m0fnu)


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_operands_are_about_one_large_and_use_every_code(kind: str) -> None:
    spec = spec_of(kind)
    inputs = random_inputs((128, 128, 512), spec.problem, generator())
    for name, stored in (("a", inputs.a), ("b", inputs.b)):
        assert 0.7 < exact_operand(inputs, spec, name).square().mean().sqrt() < 1.1
        if stored.dtype == torch.uint8:
            assert stored.flatten().bincount(minlength=256).min() > 0
        scales = inputs.extras[f"{name}_scale"].double()
        # Five powers of two; of e4m3 from 0.125 to 0.5, 16 codes and the last.
        assert len(set(numbers(scales))) == (17 if kind == "nvfp4" else 5)
        assert scales.max() / scales.min() == (4 if kind == "nvfp4" else 16)


@pytest.mark.parametrize("kind", SCALED)
def test_around_scaled_inputs_is_poison(kind: str) -> None:
    inputs = random_inputs((5, 7, 96), spec_of(kind).problem, generator(), guarded=True)
    for tensor in inputs.tensors:
        assert tensor.storage_offset() % 16 == 0
        assert max(tensor.stride()) % 16 == 0
        storage = tensor.as_strided((tensor.untyped_storage().nbytes(),), (1,), 0)
        outside = storage.numel() - tensor.numel()
        if tensor.dtype == torch.uint8:
            inside = int((tensor == 0xFF).sum())
            assert int((storage == 0xFF).sum()) - inside == outside
        else:
            assert not_finite(tensor) == 0
            assert not_finite(storage) == outside


def test_padded_elements_start_at_multiples_of_32_bytes() -> None:
    """As Triton's descriptors and the driver demand; 16 are enough for others."""
    for kind, alignments in (("mxfp8_by_mxfp4", (16, 32)), ("mxfp4_by_mxfp8", (32, 16)), ("mxfp4", (16, 16))):
        # Of e2m1 144 or 160 bytes a row, and as many before and behind.
        inputs = random_inputs((5, 7, 272), spec_of(kind).problem, generator(), guarded=True)
        for operand, alignment in ((inputs.a, alignments[0]), (inputs.b.T, alignments[1])):
            row = -(-operand.shape[1] // alignment) * alignment + 2 * alignment
            assert operand.stride() == (row, 1)
            assert operand.storage_offset() == row + alignment


def test_poison_of_e2m1_is_a_pair_of_its_least_number() -> None:
    matrix = Matrix.poisoned(2, 8, "e2m1", CPU)
    assert (decoded(matrix.view, "e2m1") == -6).all()


def test_an_odd_k_fills_no_bytes() -> None:
    with pytest.raises(ValueError, match="share a byte, and 65 is odd"):
        random_inputs((8, 8, 65), spec_of("mxfp4").problem, generator())


@pytest.mark.parametrize("kind", SCALED)
def test_small_numbers_are_multiplied_exactly_in_fp32_in_any_order(kind: str) -> None:
    spec = spec_of(kind, "fp32", alpha=-0.5)
    assert is_exact(spec.problem)
    inputs = integer_inputs((24, 40, 2048), spec.problem, generator())
    a, b = (exact_operand(inputs, spec, name).float() for name in "ab")
    exact = reference(inputs, spec.problem)
    forwards, backwards = torch.zeros(24, 40), torch.zeros(24, 40)
    for k in range(2048):
        forwards += a[:, k, None] * b[:, k]
        backwards += a[:, -1 - k, None] * b[:, -1 - k]
    assert torch.equal((-0.5 * forwards).double(), exact)
    assert torch.equal((-0.5 * backwards).double(), exact)
    # Every product is a multiple of 1/16.
    assert torch.equal((exact * 32).round(), exact * 32)


@pytest.mark.parametrize("kind", SCALED)
def test_small_numbers_through_an_epilogue_are_exact_until_the_last_rounding(kind: str) -> None:
    spec = spec_of(kind, "bf16", "row_scale", "column_bias", "residual", "tensor_scale", "relu")
    inputs = integer_inputs((40, 48, 640), spec.problem, generator())
    exact = rounded(reference(inputs, spec.problem), torch.bfloat16)
    assert torch.equal(
        bits(exact), bits(rounded(written_out(spec, inputs.a, inputs.b, **inputs.extras), exact.dtype))
    )


def test_fp8_operands_may_lie_along_m_and_n() -> None:
    spec = spec_of("mxfp8", majors="mm")
    inputs = random_inputs((48, 32, 64), spec.problem, generator())
    assert (inputs.a.stride(0), inputs.b.stride(1)) == (1, 1)
    assert row_major(spec.problem, inputs, torch.empty(48, 32))["a"].shape == (64, 48)
    assert failures(spec, kernel(spec)) == set()


# --- the exact result


def test_a_product_of_mxfp4_by_hand() -> None:
    spec = spec_of("mxfp4", "fp32")
    # A is 33 times 0x2 (1) and an 0xD (-3); B is 34 times 0x5 (3). Blocks of 32 and of 2.
    a = torch.full((1, 17), 0x22, dtype=torch.uint8)
    a[0, 16] = 0xD2
    b = torch.full((17, 1), 0x55, dtype=torch.uint8)
    powers = {
        name: torch.tensor([codes], dtype=torch.uint8)
        for name, codes in (("a", [128, 125]), ("b", [127, 129]))
    }
    extras = {f"{name}_scale": codes.view(torch.float8_e8m0fnu) for name, codes in powers.items()}
    # 32 * (1 * 2) * (3 * 1) = 192; (1 * 0.25 - 3 * 0.25) * (3 * 4) = -6.
    assert reference(Inputs(a, b, extras, sides=sides_of(spec.problem)), spec.problem).item() == 186
    assert Inputs(a, b, extras, sides=sides_of(spec.problem)).shape == (1, 1, 34)


def test_a_product_of_nvfp4_by_hand() -> None:
    spec = spec_of("nvfp4", "fp32")
    # 0x31 is 0.5 and 1.5, 0x2F is -6 and 1: 16 elements of each.
    a = torch.tensor([[0x31] * 8 + [0x2F] * 8], dtype=torch.uint8)
    b = torch.full((16, 1), 0x22, dtype=torch.uint8)
    extras = {
        "a_scale": torch.tensor([[1.5, 448.0]]).to(torch.float8_e4m3fn),
        "b_scale": torch.tensor([[2.0, 0.875]]).to(torch.float8_e4m3fn),
    }
    # 8 * (0.5 + 1.5) * 1.5 * 2 = 48; 8 * (-6 + 1) * 448 * 0.875 = -15680.
    assert reference(Inputs(a, b, extras, sides=sides_of(spec.problem)), spec.problem).item() == 48 - 15680


# --- NaN, infinities and zeros


def specials(spec: SpecFile, matmul: MatmulFunction, shape: tuple[int, int, int] = SHAPE) -> set[str]:
    checks = special_values(
        Case(matmul, shape, spec.problem, generator(), 1, None, sides=sides_of(spec.problem))
    )
    return {check.what.removeprefix("special values: ") for check in checks if not check.passed}


@pytest.mark.parametrize("kind", SCALED)
def test_special_values_of_scaled_operands_are_where_torch_has_them(kind: str) -> None:
    for d in ("bf16", "e4m3"):
        spec = spec_of(kind, d)
        for shape in (SHAPE, RAGGED, (1, 8, 16), (2, 8, 16), (3, 1, 32), (4, 8, 64)):
            assert specials(spec, kernel(spec), shape) == set()


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("scale", ["a_scale", "b_scale"])
def test_a_scale_whose_nan_is_taken_for_a_number_is_found(kind: str, scale: str) -> None:
    spec = spec_of(kind)
    right = kernel(spec)

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, **x: Tensor) -> Tensor:
        number = torch.where(x[scale].float().isnan(), 1.0, x[scale].float()).to(x[scale].dtype)
        return right(a, b, out=out, **{**x, scale: number})

    for shape in (SHAPE, (4, 8, 64), RAGGED):
        assert "NaN or no NaN unlike torch" in specials(spec, matmul, shape)


def test_zeros_of_e2m1_have_signs() -> None:
    def spoil(x: Tensor) -> Tensor:
        return torch.where(x == 0, -0.0, x)

    spec = spec_of("mxfp4", "fp32")
    assert specials(spec, kernel(spec, spoil)) == {"zeros of another sign than torch's"}
