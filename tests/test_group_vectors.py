"""Row and column operands of kernels with groups: a bias [G, N], and factors of rows that begin anywhere."""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import pytest
import torch
from drawn import bounds_of, random_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, assert_refused
from modules import made, module_file, spec_file
from torch import Tensor

from gemmgen.module import import_generated
from gemmgen.numerics.reference import reference

pytest_plugins = ["fake_calls"]

BIAS, GPTOSS, SCALED, MASKED = (
    "h100_bf16_grouped_bias",
    "h100_bf16_grouped_gptoss",
    "h100_e4m3_grouped_scaled",
    "h100_bf16_masked_weighted",
)
BF16, INT, FP32, E4M3 = torch.bfloat16, torch.int32, torch.float32, torch.float8_e4m3fn


# --- the reference


@pytest.mark.parametrize("stem", [BIAS, SCALED, MASKED])
def test_the_reference_has_the_vectors_of_each_group(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((40, 24, 64), problem, torch.Generator().manual_seed(3))
    a = inputs.a.double().flatten(0, -2)
    of_rows = inputs.extras["row_scale"].double().flatten()
    expected: list[Tensor] = []
    for group, (first, end) in enumerate(bounds_of(problem, inputs)):
        d = a[first:end] @ inputs.b[group].double()
        if "column_bias" in inputs.extras:
            d = d + inputs.extras["column_bias"][group].double()
        if "column_scale" in inputs.extras:
            d = d * inputs.extras["column_scale"][group].double()
        expected.append(d * of_rows[first:end, None])
    assert torch.allclose(reference(inputs, problem), torch.cat(expected), rtol=1e-12)


def test_a_gate_has_a_bias_of_its_own_for_each_accumulator() -> None:
    problem = made(spec_file(GPTOSS)).source.problem
    inputs = random_inputs((40, 24, 64), problem, torch.Generator().manual_seed(3))
    expected: list[Tensor] = []
    for group, (first, end) in enumerate(bounds_of(problem, inputs)):
        sums = inputs.a[first:end].double() @ inputs.b[group].double()
        sums += inputs.extras["column_bias"][group].double()
        gate, up = sums[:, 0::2].clamp(max=7), sums[:, 1::2].clamp(-7, 7)
        expected.append(gate * torch.sigmoid(1.702 * gate) * (up + 1))
    assert torch.allclose(reference(inputs, problem), torch.cat(expected), rtol=1e-6)


# --- the function


@pytest.mark.parametrize("module", [BIAS], indirect=True)
def test_vectors_are_passed_by_address_from_any_element(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(16, 64), cuda(5, 32, 64).mT, cuda(5, dtype=INT)
    bias, factors = cuda(5 * 32 + 1)[1:].view(5, 32), cuda(17, dtype=FP32)[1:]
    module.matmul(a, b, column_bias=bias, row_scale=factors, offs=offs)
    ((_, _, arguments),) = driver.jit
    assert arguments[2].data_ptr() == bias.data_ptr()
    assert arguments[3].data_ptr() == factors.data_ptr()


WRONG = {
    "a bias of one group": ({"column_bias": cuda(32)}, "column_bias", "shape [32]"),
    "a bias of other groups": ({"column_bias": cuda(4, 32)}, "column_bias", "[4, 32]"),
    "a bias with gaps": ({"column_bias": cuda(5, 40)[:, :32]}, "column_bias", "strides (40, 1)"),
    "factors of other rows": ({"row_scale": cuda(15, dtype=FP32)}, "row_scale", "[15]"),
    "factors of bf16": ({"row_scale": cuda(16)}, "row_scale", "torch.bfloat16"),
}


@pytest.mark.parametrize("module", [BIAS], indirect=True)
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_vector_is_named_before_anything_is_launched(
    case: str, module: ModuleType, driver: FakeDriver
) -> None:
    changed, name, found = WRONG[case]
    right = {"column_bias": cuda(5, 32), "row_scale": cuda(16, dtype=FP32), "offs": cuda(5, dtype=INT)}
    given = {"a": cuda(16, 64), "b": cuda(5, 32, 64).mT, **right, **changed}
    assert_refused(module, driver, given, name, found)


@pytest.mark.parametrize("module", [MASKED], indirect=True)
def test_rows_of_groups_that_lie_apart_have_factors_that_do(module: ModuleType, driver: FakeDriver) -> None:
    a, b, rows = cuda(5, 8, 64), cuda(5, 32, 64).mT, cuda(5, dtype=INT)
    bias, factors = cuda(5, 32), cuda(5, 8, dtype=FP32)
    assert module.matmul(a, b, column_bias=bias, row_scale=factors, rows=rows).shape == (5, 8, 32)
    with pytest.raises(ValueError, match="row_scale must have 2 dimensions"):
        module.matmul(a, b, column_bias=bias, row_scale=cuda(40, dtype=FP32), rows=rows)
    assert len(driver.jit) == 1


# --- a GPU


@pytest.mark.gpu
def test_the_numbers_are_those_of_torchs_scaled_grouped_mm() -> None:
    module = import_generated(module_file(SCALED))
    a = torch.randn(512, 256, device="cuda").to(E4M3)
    b = torch.randn(16, 384, 256, device="cuda").to(E4M3).mT
    of_rows, of_columns = torch.rand(512, device="cuda"), torch.rand(16, 384, device="cuda")
    offs = torch.randint(0, 512, (16,), device="cuda").sort().values.to(INT)
    offs[-1] = 512
    theirs = cast(Any, torch)._scaled_grouped_mm(
        a, b, of_rows, of_columns, offs=offs, out_dtype=BF16, use_fast_accum=True
    )
    ours = module.matmul(a, b, row_scale=of_rows, column_scale=of_columns, offs=offs)
    assert torch.allclose(ours.float(), theirs.float(), atol=0.25, rtol=0.02)
