"""bench of the Blackwell specs, as far as it goes without a B200: what is compared, and by which calls.

torch's own checks of the arguments of ``_scaled_mm`` run on tensors without memory, as if on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest
import torch
from blackwell_modules import computed, fake_gpu, module_and_spec
from drawn import random_inputs
from modules import BLACKWELL_SPECS, module_file, spec_file
from right_kernel import SCALED, VECTORS, pack_scales, spec_of
from told import refusal
from torch import Tensor

from gemmgen.bench import Protocol, Subject, bench, from_json, markdown_table, to_json
from gemmgen.bench.arms import input_sets
from gemmgen.bench.baseline import cublas
from gemmgen.bench.machine import Work
from gemmgen.bench.module_arm import other_module
from gemmgen.bench.record import Environment, GpuState, ceilings_of, path_from_here
from gemmgen.bench.single import time_spec
from gemmgen.errors import GemmgenError
from gemmgen.features.block_scales.torch_scaled import block_scaled_mm, offered
from gemmgen.module import import_generated
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.numerics.inputs import Inputs
from gemmgen.problem import Shape
from gemmgen.problem.dtypes import Dtypes
from gemmgen.spec import SpecFile, load_spec

CHOICE = "cuBLAS's default choice: "
PAIRS = "a.view(torch.float4_e2m1fn_x2), b.view(torch.float4_e2m1fn_x2)"
SCALES = "scale_a=a_scale, scale_b=b_scale"
BEFORE = "scales packed before"


def silent(_: str) -> None:
    """Report no progress."""


# --- cuBLAS

STATED: dict[str, tuple[SpecFile, str]] = {
    "mxfp8": (
        spec_of("mxfp8"),
        f"torch._scaled_mm(a, b, {SCALES}, out_dtype=torch.bfloat16, out=d), mxfp8 (e4m3), {BEFORE}",
    ),
    "mxfp8 of two types": (
        spec_of("mxfp8_e5m2", "fp32"),
        (
            f"torch._scaled_mm(a, b, {SCALES}, out_dtype=torch.float32, out=d), "
            f"mxfp8 (e5m2) and mxfp8 (e4m3), {BEFORE}"
        ),
    ),
    "nvfp4": (
        spec_of("nvfp4", "fp16"),
        f"torch._scaled_mm({PAIRS}, {SCALES}, out_dtype=torch.float16, out=d), nvfp4, {BEFORE}",
    ),
    "nvfp4 with a scale for the tensor": (
        spec_of("nvfp4", "bf16", "tensor_scale"),
        (
            f"torch._scaled_mm({PAIRS}, {SCALES}, out_dtype=torch.bfloat16, out=d), nvfp4, {BEFORE}, "
            "then d.mul_(tensor_scale)"
        ),
    ),
    "mxfp8 into fp8": (
        spec_of("mxfp8", "e4m3", alpha=0.5),
        (
            f"torch._scaled_mm(a, b, {SCALES}, out_dtype=torch.bfloat16), mxfp8 (e4m3), {BEFORE}, "
            "then d.mul_(0.5), then clamp to its range and d.to(torch.float8_e4m3fn)"
        ),
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_the_baseline_of_scaled_operands_is_stated_exactly(name: str) -> None:
    spec, text = STATED[name]
    assert offered(spec.problem)
    assert cublas(spec).text == CHOICE + text


@pytest.mark.parametrize("kind", ["mxfp4", "mxfp8_by_mxfp4", "mxfp4_by_mxfp8"])
def test_formats_that_cublas_lacks_have_no_baseline(kind: str) -> None:
    assert not offered(spec_of(kind).problem)
    assert refusal(lambda: cublas(spec_of(kind))).code == "no-baseline"


def on_meta(inputs: Inputs) -> Inputs:
    """Tensors of the same types, shapes and strides without memory, which torch checks as a GPU's."""

    def meta(tensor: Tensor) -> Tensor:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        assert made.stride() == tensor.stride()
        return made

    extras = {name: meta(tensor) for name, tensor in inputs.extras.items()}
    return replace(inputs, a=meta(inputs.a), b=meta(inputs.b), extras=MappingProxyType(extras))


def scaled_mm_arguments(
    spec: SpecFile, inputs: Inputs, d: Tensor
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """What the baseline calls ``_scaled_mm`` with."""
    call: Any = block_scaled_mm(spec.problem).bind(inputs, d)
    function: Any = torch
    assert call.func is function._scaled_mm
    return call.args, call.keywords


def checked_by_torch(spec: SpecFile, inputs: Inputs) -> Tensor:
    """Let torch check the baseline's arguments; it does so where there is no ``out``."""
    m, n, _ = inputs.shape
    d = torch.empty(m, n, dtype=TORCH_DTYPES[spec.problem.d.name], device="meta")
    arguments, keywords = scaled_mm_arguments(spec, on_meta(inputs), d)
    assert keywords.pop("out") is d
    function: Any = torch
    return function._scaled_mm(*arguments, **keywords)


@pytest.mark.parametrize("kind", [kind for kind in SCALED if offered(spec_of(kind).problem)])
@pytest.mark.parametrize("shape", [(256, 128, 512), (300, 784, 704), (16, 16, 32), (1, 16, 96)])
def test_the_baselines_arguments_are_what_torch_asks_for(kind: str, shape: Shape) -> None:
    spec = spec_of(kind)
    m, n, k = shape
    plain = random_inputs(shape, spec.problem, torch.Generator().manual_seed(0))
    d = torch.empty(m, n, dtype=torch.bfloat16)
    (a, b), keywords = scaled_mm_arguments(spec, plain.packed(pack_scales), d)
    packed_k = k // 2 if kind == "nvfp4" else k
    types = [torch.float4_e2m1fn_x2] * 2 if kind == "nvfp4" else [plain.a.dtype, plain.b.dtype]
    assert [a.dtype, b.dtype] == types
    assert (a.shape, b.shape, b.stride(0)) == ((m, packed_k), (packed_k, n), 1)
    assert (a.data_ptr(), b.data_ptr()) == (plain.a.data_ptr(), plain.b.data_ptr())
    columns = math.ceil(math.ceil(k / VECTORS["nvfp4" if kind == "nvfp4" else "mxfp8"]) / 4) * 4
    for name, rows in (("a", m), ("b", n)):
        scale = keywords[f"scale_{name}"]
        # In whole blocks of 128 x 4, in a row, byte for byte as the tensor cores read them.
        assert scale.shape == (math.ceil(rows / 128) * 128 * columns,)
        assert scale.is_contiguous()
        assert scale.dtype == (torch.float8_e4m3fn if kind == "nvfp4" else torch.float8_e8m0fnu)
        expected = pack_scales(plain.extras[f"{name}_scale"]).view(torch.uint8).flatten()
        assert torch.equal(scale.view(torch.uint8), expected)
    assert keywords["out"] is d
    assert keywords["out_dtype"] == torch.bfloat16


OFFERED = [
    path for path in BLACKWELL_SPECS if path.stem[5:10] in ("mxfp8", "nvfp4") and "mxfp4" not in path.stem
]


@pytest.mark.parametrize("path", OFFERED, ids=lambda path: path.stem)
def test_torch_accepts_the_arguments_of_every_specs_baseline(path: Path) -> None:
    module, spec = module_and_spec(path)
    assert offered(spec.problem)
    for m, n, k in (256, 256, 256), (496, 608, 640), (304, 784, 704):
        inputs = random_inputs((m, n, k), spec.problem, torch.Generator().manual_seed(0)).packed(
            module.pack_scales
        )
        result = checked_by_torch(spec, inputs)
        assert (result.shape, result.dtype) == ((m, n), module.ARGUMENTS["out"]["dtype"])


def test_torch_refuses_scales_of_another_size() -> None:
    # So that the test above means something: one block of 512 bytes too many.
    spec = spec_of("nvfp4")
    inputs = random_inputs((128, 128, 256), spec.problem, torch.Generator().manual_seed(0)).packed(
        pack_scales
    )
    more = torch.cat([inputs.extras["a_scale"].view(torch.uint8)] * 2).view(torch.float8_e4m3fn)
    wrong = replace(inputs, extras=MappingProxyType({**inputs.extras, "a_scale": more}))
    with pytest.raises(RuntimeError, match="scale_a should have 2048 elements, got 4096"):
        checked_by_torch(spec, wrong)


# --- formats that torch does not multiply

WITHOUT = [path for path in BLACKWELL_SPECS if "mxfp4" in path.stem]


def test_specs_of_mxfp4_alone_have_no_baseline() -> None:
    for path in BLACKWELL_SPECS:
        source = load_spec(path)
        if path in WITHOUT:
            with pytest.raises(GemmgenError, match="no-baseline"):
                cublas(source)
        else:
            assert cublas(source).text.startswith(CHOICE)


# --- a whole benchmark


@dataclass
class StillMachine:
    """Every piece of work takes a millisecond, by a clock that a second passes on between two looks."""

    clock: float = 0.0

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def environment(self) -> Environment:
        return Environment("0", "0", "0", "0", "0", "0", "NVIDIA B200", sm_count=148, l2_bytes=1)

    def state(self, work: Work) -> GpuState | None:
        return None

    def now(self) -> float:
        self.clock += 1.0
        return self.clock

    def synchronize(self) -> None:
        pass

    def seconds(self, work: Work) -> float:
        work()
        return 1e-3

    def capture(self, work: Work) -> Work:
        return work


PROTOCOL = Protocol(
    repetitions=1, pairs=1, sample_seconds=1e-3, warm_up_seconds=0.1, host_rounds=1, host_calls=1
)
SMALL = (16, 24, 128)


@pytest.mark.parametrize("path", WITHOUT, ids=lambda path: path.stem)
def test_a_spec_without_a_call_of_torch_is_timed_against_another_module(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    module, spec = module_and_spec(path)
    computed(monkeypatch, module, spec)
    packed: list[int] = []
    monkeypatch.setattr(module, "pack_scales", counting(packed, module.pack_scales))

    def imported(path: Path) -> ModuleType:
        made = import_generated(path)
        computed(monkeypatch, made, spec)
        monkeypatch.setattr(made, "pack_scales", counting(packed, made.pack_scales))
        return made

    monkeypatch.setattr("gemmgen.bench.module_arm.import_generated", imported)
    subject = Subject.of(path, module_file(path.stem))
    told: list[str] = []
    record = bench(
        module,
        subject,
        spec,
        [SMALL],
        protocol=PROTOCOL,
        machine=StillMachine(),
        baseline=other_module(module_file(path.stem)),
        progress=told.append,
    )
    assert packed == [1, 1]  # A's scales and B's, once: both arms get what is packed
    assert not any("roofline" in message for message in told)
    (measurement,) = record.measurements
    assert measurement.relative_error == measurement.baseline_relative_error < 1e-2
    assert record.baseline.startswith(f"gemmgen's module {path_from_here(module_file(path.stem))}, sha256 ")
    assert record.ceilings is not None
    assert record.ceilings.flops_per_second == (4.5e15 if "mxfp8" in path.stem else 9e15)
    assert from_json(to_json(record), "r.json") == record
    assert "| gemmgen TFLOP/s | baseline TFLOP/s |" in markdown_table([record])


def counting(calls: list[int], pack: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def counted(scales: Tensor) -> Tensor:
        calls.append(1)
        return pack(scales)

    return counted


@pytest.mark.parametrize("kind", SCALED)
def test_scales_are_packed_before_anything_is_timed(kind: str) -> None:
    spec = spec_of(kind)
    (made,) = input_sets(SMALL, spec.problem, 1, torch.Generator().manual_seed(0), Protocol(), pack_scales)
    for name in ("a_scale", "b_scale"):
        assert made.inputs.extras[name].dim() == 2
        assert torch.equal(
            made.timed.extras[name].view(torch.uint8), pack_scales(made.inputs.extras[name]).view(torch.uint8)
        )
    assert made.timed.a is made.inputs.a


# --- rooflines and errors


@pytest.mark.parametrize(
    ("operand", "bits", "flops"),
    [
        ("bf16", 16, 2.25e15),
        ("tf32", 32, 1.125e15),
        ("e4m3", 8, 4.5e15),
        ("e2m1", 4, 9e15),
        ("e2m1", 8, 4.5e15),  # padded
    ],
)
def test_the_ceilings_of_a_b200_are_its_datasheets(operand: Any, bits: int, flops: float) -> None:
    ceilings = ceilings_of("NVIDIA B200", operand, bits)
    assert ceilings is not None
    assert (ceilings.flops_per_second, ceilings.bytes_per_second) == (flops, 8e12)
    assert "datasheet of the B200" in ceilings.source
    assert ceilings_of("NVIDIA GB200", operand, bits) is None


def test_scales_and_halves_of_bytes_are_counted() -> None:
    # Rows of A and of B's transpose: 100 elements of 4 bits are 50 bytes, with ceil(100 / 16) = 7 scales or
    # ceil(100 / 32) = 4; of 8 bits 100. 2 rows of A, 3 of B, 6 elements of D of 2 bytes.
    assert Dtypes("e2m1", "e2m1", "bf16", None, "nvfp4", "nvfp4").moved_bytes((2, 3, 100)) == 5 * 57 + 12
    assert Dtypes("e2m1", "e2m1", "bf16", None, "mxfp4", "mxfp4").moved_bytes((2, 3, 100)) == 5 * 54 + 12
    assert Dtypes("e4m3", "e2m1", "bf16", None, "mxfp8", "mxfp4").moved_bytes((2, 3, 100)) == (
        2 * 104 + 3 * 54 + 12
    )
    assert Dtypes.of(spec_of("mxfp8_by_mxfp4").problem) == Dtypes(
        "e4m3", "e2m1", "bf16", None, "mxfp8", "mxfp4"
    )
    assert Dtypes.of(spec_of("bf16").problem) == Dtypes("bf16", "bf16", "bf16")


def test_a_k_that_the_operands_cannot_have_is_not_timed() -> None:
    module, spec = module_and_spec(spec_file("b200_mxfp8_mxfp4"))
    subject = Subject("specs/b200_mxfp8_mxfp4.yaml", "0" * 64, "1" * 64)
    found = refusal(lambda: bench(module, subject, spec, [(8, 8, 128), (8, 8, 64)]))
    assert (found.path, found.code) == ("--shapes", "bad-shapes")
    assert {"128", "8x8x64"} <= {*found.message.split()}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("path", BLACKWELL_SPECS, ids=lambda path: path.stem)
def test_without_the_card_nothing_is_timed(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    for _ in range(2):
        found = refusal(lambda: time_spec(path, [(256, 256, 256)], silent))
        assert found.code == "no-gpu"
        assert found.message.endswith("10.0 (B200)")
        fake_gpu(monkeypatch, "NVIDIA H200", (9, 0))
