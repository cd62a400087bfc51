"""baseline: for every spec, the torch calls that give the same result, stated exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from drawn import random_inputs
from modules import spec_file
from right_kernel import spec_of

from gemmgen.bench.baseline import cublas
from gemmgen.errors import GemmgenError
from gemmgen.numerics.matrices import Matrix
from gemmgen.numerics.reference import deviation
from gemmgen.spec import SpecFile, load_spec

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
RECORDS = sorted((ROOT / "benchmarks").glob("h100_*.json"))

CHOICE = "cuBLAS's default choice: "
REDUCED = "reduced-precision reduction True"
SCALED = "use_fast_accum=True"
F = "torch.nn.functional"

STATED: dict[str, tuple[SpecFile, str]] = {
    "tf32": (spec_of("tf32", "fp32"), "torch.matmul(a, b, out=d), tf32, allow_tf32 True"),
    "tf32 into bf16": (
        spec_of("tf32", "bf16"),
        "torch.matmul(a, b), tf32, allow_tf32 True, then d.to(torch.bfloat16)",
    ),
    "fp16 accumulator": (
        spec_of("fp16", "fp16", accumulator="fp16"),
        "torch.matmul(a, b, out=d), fp16, allow_fp16_accumulation True",
    ),
    "bf16 into fp8": (
        spec_of("bf16", "e4m3"),
        f"torch.matmul(a, b), bf16, {REDUCED}, then clamp to its range and d.to(torch.float8_e4m3fn)",
    ),
    "alpha": (spec_of(alpha=0.5), f"torch.addmm(d, a, b, beta=0, alpha=0.5, out=d), bf16, {REDUCED}"),
    "alpha and C": (
        spec_of(c="bf16", alpha=-1.0, beta=2.0),
        f"torch.addmm(c, a, b, beta=2, alpha=-1, out=d), bf16, {REDUCED}",
    ),
    "C of another type": (
        spec_of(c="fp32", beta=0.5),
        f"torch.matmul(a, b, out=d), bf16, {REDUCED}, then d.add_(c, alpha=0.5)",
    ),
    "bias and gelu": (
        spec_of("bf16", "bf16", "column_bias", "gelu_tanh"),
        f"torch.addmm(column_bias, a, b, out=d), bf16, {REDUCED}, then {F}.gelu(d, approximate='tanh')",
    ),
    "residual after relu": (
        spec_of("bf16", "bf16", "relu", "residual", c="bf16", beta=3.0),
        f"torch.matmul(a, b, out=d), bf16, {REDUCED}, then {F}.relu(d), then d.add_(c)",
    ),
    "residual first": (
        spec_of("fp16", "fp16", "residual", "silu", c="fp16"),
        f"torch.addmm(c, a, b, out=d), fp16, {REDUCED}, then {F}.silu(d)",
    ),
    "vectors": (
        spec_of("bf16", "bf16", "row_scale", "row_bias", "gelu_erf"),
        (
            f"torch.matmul(a, b, out=d), bf16, {REDUCED}, then d.mul_(row_scale[:, None]), "
            f"then d.add_(row_bias[:, None]), then {F}.gelu(d)"
        ),
    ),
    "int8": (spec_of("int8", "int32"), "torch._int_mm(a, b, out=d), int8"),
    "int8 scaled": (
        spec_of("int8", "bf16", "row_scale", "column_scale", "column_bias"),
        (
            "torch._int_mm(a, b), int8, then d.to(torch.bfloat16), then d.mul_(row_scale[:, None]), "
            "then d.mul_(column_scale), then d.add_(column_bias)"
        ),
    ),
    "int8 scaled into fp16": (
        spec_of("int8", "fp16", "tensor_scale"),
        (
            "torch._int_mm(a, b), int8, then d.to(torch.float32), then d.mul_(tensor_scale), "
            "then d.to(torch.float16)"
        ),
    ),
    "fp8": (
        spec_of("e4m3", "bf16"),
        f"torch._scaled_mm(a, b, scale_a=1, scale_b=1, out_dtype=torch.bfloat16, {SCALED}, out=d), e4m3",
    ),
    "fp8 promoted": (
        spec_of("e5m2", "fp32", b="e4m3", promote_k=128),
        (
            "torch._scaled_mm(a, b, scale_a=1, scale_b=1, out_dtype=torch.float32, use_fast_accum=False, "
            "out=d), e5m2 and e4m3"
        ),
    ),
    "fp8 into fp8": (
        spec_of("e4m3", "e4m3", "tensor_scale", alpha=0.5),
        (
            "torch._scaled_mm(a, b, scale_a=0.5, scale_b=tensor_scale, out_dtype=torch.float8_e4m3fn, "
            f"{SCALED}, out=d), e4m3"
        ),
    ),
    "fp8 into e5m2": (
        spec_of("e4m3", "e5m2"),
        (
            f"torch._scaled_mm(a, b, scale_a=1, scale_b=1, out_dtype=torch.bfloat16, {SCALED}), e4m3, "
            "then clamp to its range and d.to(torch.float8_e5m2)"
        ),
    ),
    "fp8 with vectors, bias and relu": (
        spec_of("e4m3", "bf16", "column_scale", "row_scale", "column_bias", "relu"),
        (
            "torch._scaled_mm(a, b, scale_a=row_scale[:, None], scale_b=column_scale[None], "
            f"bias=column_bias, out_dtype=torch.bfloat16, {SCALED}, out=d), e4m3, then {F}.relu(d)"
        ),
    ),
    "fp8 with one vector": (
        spec_of("e4m3", "fp32", "row_scale", "column_bias"),
        (
            "torch._scaled_mm(a, b, scale_a=row_scale[:, None], scale_b=ones[None], "
            f"out_dtype=torch.float32, {SCALED}, out=d), e4m3, then d.add_(column_bias)"
        ),
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_the_baseline_of_a_spec_is_stated_exactly(name: str) -> None:
    spec, text = STATED[name]
    assert cublas(spec).text == CHOICE + text


def runs_here(spec: SpecFile) -> bool:
    """Whether torch has the call on a CPU: it has no 8-bit floats there, and no `out_dtype`."""
    return spec.problem.a.dtype.name in ("bf16", "fp16", "tf32", "int8")


@pytest.mark.parametrize("name", [name for name, (spec, _) in STATED.items() if runs_here(spec)])
def test_what_the_baseline_calls_computes_the_spec(name: str) -> None:
    spec, _ = STATED[name]
    shape = (40, 48, 64)
    inputs = random_inputs(shape, spec.problem, torch.Generator().manual_seed(0), normalized=True)
    d = Matrix.poisoned(40, 48, spec.problem.d.name, torch.device("cpu")).view
    baseline = cublas(spec)
    with baseline.settings():
        call = baseline.bind(inputs, d)
        for _ in range(2):  # what it changes are its own results
            found = deviation(call(), inputs, spec.problem)
            # Each operation rounds to the type that holds the result between them.
            assert found.relative < (0 if spec.problem.d.name == "int32" else 6.5e-2) + 1e-12


def test_settings_of_torch_are_put_back() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, matmul.allow_fp16_accumulation
    with cublas(spec_of("tf32", "fp32")).settings():
        assert matmul.allow_tf32
    with cublas(spec_of("fp16", "fp16", accumulator="fp16")).settings():
        assert matmul.allow_fp16_accumulation
    assert (matmul.allow_tf32, matmul.allow_fp16_accumulation) == before


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (spec_of("e5m2", "bf16"), "e5m2 and e5m2 into bf16"),
        (spec_of("bf16", "fp16"), "bf16 and bf16 into fp16"),
        (spec_of("bf16", "bf16", b="fp16"), "bf16 and fp16 into bf16"),
        (spec_of("bf16", "int32"), "bf16 and bf16 into int32"),
        (spec_of("e4m3", "bf16", majors="mk"), "e4m3 and e4m3 with an M-contiguous A"),
    ],
)
def test_what_torch_cannot_multiply_has_no_baseline(spec: SpecFile, what: str) -> None:
    with pytest.raises(GemmgenError, match=rf"error\[no-baseline\]: torch has no cuBLAS matmul of {what}$"):
        cublas(spec)


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_names_the_baseline_that_its_spec_has(record: Path) -> None:
    spec = load_spec(spec_file(record.stem))
    assert cublas(spec).text == json.loads(record.read_text())["baseline"]
