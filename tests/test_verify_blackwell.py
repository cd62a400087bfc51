"""verify of the Blackwell specs, as far as it goes without a B200: which checks, on what, by which calls.

Nobody here has such a GPU. The numbers of a plan of checks are run by right kernels of torch's on the CPU, in
the wrapper of each module: all but the launch itself is the module's own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from blackwell_modules import computed, fake_gpu, module_and_spec
from drawn import random_inputs
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from modules import BLACKWELL_SPECS
from right_kernel import SCALED, kernel, module_of, pack_scales, spec_of
from told import refusal
from torch import Tensor

from gemmgen.bench.record import ceilings_of
from gemmgen.device import require_gpu
from gemmgen.features.checking import sides_of
from gemmgen.hardware import BLACKWELL, GPUS, HOPPER
from gemmgen.module import pack_scales_of
from gemmgen.numerics.case import Case
from gemmgen.numerics.inputs import Inputs
from gemmgen.plan.access import TensorAccess
from gemmgen.problem import Shape
from gemmgen.spec import SpecFile
from gemmgen.verify import ACCEPTANCE_SHAPES, default_shapes, verify, verify_large
from gemmgen.verify.shapes import acceptance_shapes, large_shape
from gemmgen.verify.verification import GPU_ONLY, PORTABLE, groups_of, streamed

RAGGED = (37, 40, 384)


# --- the GPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("path", BLACKWELL_SPECS, ids=lambda path: path.stem)
def test_without_a_gpu_the_one_that_is_needed_is_named(path: Path) -> None:
    module, spec = module_and_spec(path)
    for check in (lambda: verify(module, spec), lambda: verify_large(module, spec)):
        found = refusal(check)
        assert (found.path, found.code) == ("", "no-gpu")
        assert found.message.endswith(" a Blackwell GPU, compute capability 10.0 (B200)")


@pytest.mark.parametrize(
    ("name", "capability", "architecture", "needed"),
    [
        ("NVIDIA H200", (9, 0), BLACKWELL, "10.0 (B200)"),
        ("NVIDIA RTX PRO 6000", (12, 0), BLACKWELL, "10.0 (B200)"),
        ("NVIDIA B200", (10, 0), HOPPER, "9.0 (H100, H200)"),
    ],
)
def test_another_gpu_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], architecture: Any, needed: str
) -> None:
    fake_gpu(monkeypatch, name, capability)
    found = refusal(lambda: require_gpu(architecture))
    assert found.code == "no-gpu"
    assert found.message.startswith(f"{name} ")
    assert found.message.endswith(needed)


def test_the_right_gpu_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu(monkeypatch, "NVIDIA B200", (10, 0))
    assert require_gpu(BLACKWELL) == torch.device("cuda", 0)
    fake_gpu(monkeypatch, "NVIDIA H200", (9, 0))
    assert require_gpu(HOPPER) == torch.device("cuda", 0)


def test_a_gpu_is_known_by_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = replace(BLACKWELL, name="sm_103a", compute_capability=103)
    row = replace(
        GPUS["b200"], target="b300", name="B300", architecture=newer, sm_count=160, device=r"\bB300\b"
    )
    monkeypatch.setitem(GPUS, "b300", row)
    fake_gpu(monkeypatch, "NVIDIA B300", (10, 3))
    assert require_gpu(newer) == torch.device("cuda", 0)
    assert refusal(lambda: require_gpu(BLACKWELL)).code == "no-gpu"
    fake_gpu(monkeypatch, "NVIDIA B200", (10, 0))
    assert refusal(lambda: require_gpu(newer)).message.endswith("10.3 (B300)")
    ceilings = ceilings_of("NVIDIA B300", "bf16", 16)
    assert ceilings is not None
    assert "B300" in ceilings.source


# --- the shapes

INSTRUCTION_K = {"bf16": 16, "fp16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "e2m1": 64}
"""Of tcgen05.mma: 32 bytes."""


@pytest.mark.parametrize("path", BLACKWELL_SPECS, ids=lambda path: path.stem)
def test_every_spec_is_checked_on_shapes_that_its_operands_can_have(path: Path) -> None:
    _, spec = module_and_spec(path)
    problem = spec.problem
    shapes = acceptance_shapes(spec)
    assert default_shapes(spec)[: len(spec.request.check_shapes)] == spec.request.check_shapes
    assert all(shape[2] % TensorAccess(problem).k_multiple == 0 for shape in default_shapes(spec))
    kinds = {spec.problem.a.dtype.name, spec.problem.b.dtype.name}
    if "e2m1" in kinds and len(kinds) == 2:  # padded: TMA moves 128 elements at a time
        assert {k for _, _, k in shapes} == {8192, 384, 2048, 128, 4224, 512, 256}
        # 32 elements of an instruction, and 32 + 128, rounded up to 128.
        assert shapes[-2:] == ((128, 128, 128), (130, 264, 256))
        assert large_shape(spec) == (65536, 33024, 128)
        return
    k = min(INSTRUCTION_K[kind] for kind in kinds)
    more = 2 if kinds == {"e2m1"} else 1  # a byte holds two
    assert shapes == (*ACCEPTANCE_SHAPES, (128, 128, k), (130, 264, k + more))
    assert large_shape(spec) == (65536, 33024, 64)


@pytest.mark.parametrize(
    ("kind", "k", "multiple"), [("mxfp4", 33, 2), ("mxfp4_by_mxfp8", 64, 128), ("mxfp8_by_mxfp4", 192, 128)]
)
def test_a_k_that_the_operands_cannot_have_is_refused_before_anything_runs(
    kind: str, k: int, multiple: int
) -> None:
    spec = spec_of(kind)
    found = refusal(lambda: verify(module_of(kernel(spec)), spec, [(8, 8, k), (8, 8, 256)]))
    assert (found.path, found.code) == ("--shapes", "bad-shapes")
    assert {f"{multiple}", f"8x8x{k}"} <= {*found.message.split()}


# --- the checks


@pytest.mark.parametrize("path", BLACKWELL_SPECS, ids=lambda path: path.stem)
def test_every_spec_has_the_checks_of_all_modules_and_scaled_ones_one_more(path: Path) -> None:
    module, spec = module_and_spec(path)
    scaled = spec.spec.operands.a.scale is not None
    names = [group.name for group in groups_of(spec.problem, "cuda")]
    portable = ["own output", "out=", "strided", "special values", "repeated"]
    over_c = ["in place"] * (spec.problem.c is not None and spec.problem.c == spec.problem.d)
    on_a_gpu = ["cuda graph", "side stream"]
    assert names == [*(["packed scales"] if scaled else []), *portable, *over_c, *on_a_gpu]
    assert [*portable, *on_a_gpu] == [group.name for group in (*PORTABLE, *GPU_ONLY)]
    assert (pack_scales_of(module) is not None) == scaled


@pytest.mark.parametrize("path", BLACKWELL_SPECS, ids=lambda path: path.stem)
def test_a_right_launch_passes_every_check_in_the_modules_own_wrapper(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    module, spec = module_and_spec(path)
    computed(monkeypatch, module, spec)
    k = TensorAccess(spec.problem).k_multiple
    shapes: list[Shape] = [RAGGED, (1, 8, 16 if k == 1 else 128), (13, 21, 34 if k <= 2 else 128)]
    verification = verify(module, spec, shapes, repeats=2, device="cpu")
    assert [str(check) for check in verification.failures] == []
    made = {check.what for check in verification.checks if check.shape == RAGGED}
    scaled = {
        f"packed {names}: elements that differ" for names in ("a_scale", "b_scale", "a_scale and b_scale")
    }
    assert (scaled <= made) == (spec.spec.operands.a.scale is not None)


def case_of(spec: SpecFile, pack: Callable[[Tensor], Tensor] | None = None) -> Case:
    generator = torch.Generator().manual_seed(0)
    return Case(
        *(kernel(spec), (40, 48, 128), spec.problem, generator),
        repeats=1,
        promote_k=None,
        pack_scales=pack,
        sides=sides_of(spec.problem),
    )


def failures(module: ModuleType, spec: SpecFile) -> set[str]:
    verification = verify(module, spec, [(40, 48, 128)], repeats=1, device="cpu")
    return {str(check) for check in verification.failures}


@pytest.mark.parametrize("kind", SCALED)
def test_scales_that_are_packed_wrongly_are_found(kind: str) -> None:
    spec = spec_of(kind)
    module = module_of(kernel(spec))
    assert failures(module, spec) == set()
    module.__dict__["pack_scales"] = lambda scales: pack_scales(scales).flip(3)  # pyright: ignore
    found = failures(module, spec)
    assert len(found) == 3
    for names in ("a_scale", "b_scale", "a_scale and b_scale"):
        assert any(text.startswith(f"40x48x128 packed {names}: elements that differ: ") for text in found)


def test_a_scaled_module_without_a_packing_function_fails_one_check() -> None:
    spec = spec_of("nvfp4")
    module = module_of(kernel(spec))
    del module.__dict__["pack_scales"]
    (found,) = failures(module, spec)
    assert found.startswith("40x48x128 packed scales: AttributeError: ")


class Stream:
    """A stream of a GPU that does everything at once."""

    def wait_stream(self, stream: Stream) -> None:
        pass


@pytest.mark.parametrize("kind", SCALED)
def test_inputs_of_every_type_can_become_valid_late_on_a_side_stream(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext[Stream])
    monkeypatch.setattr("gemmgen.verify.verification.DELAY_BYTES", 1)
    spec = spec_of(kind, "bf16", "tensor_scale")
    (check,) = streamed(case_of(spec, pack_scales))
    assert (check.measured, check.limit, check.passed) == (0, 0, True)


# --- the call


@pytest.fixture(params=BLACKWELL_SPECS, ids=lambda path: path.stem)
def launched(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[SpecFile, Callable[[Inputs], dict[str, Any]]]:
    """Give a spec, and what its wrapper launches the kernel with: descriptors and tensors by name."""
    module, spec = module_and_spec(request.param)
    made: list[tuple[Any, ...]] = []

    def keep(*launched: Any) -> None:
        made.append(launched)

    on_a_fake_gpu(monkeypatch, (10, 0))
    launch_into(module, keep)

    def launch(inputs: Inputs) -> dict[str, Any]:
        made.clear()
        m, n, _ = inputs.shape
        dtype = module.ARGUMENTS["out"]["dtype"]
        out = torch.zeros(m, -(-n // 16) * 16, dtype=dtype)[:, :n].as_subclass(Cuda)
        extras = {name: tensor.as_subclass(Cuda) for name, tensor in inputs.extras.items()}
        module.matmul(inputs.a.as_subclass(Cuda), inputs.b.as_subclass(Cuda), out=out, **extras)
        ((*_, arguments),) = made
        return dict(zip(module.matmul_kernel.arg_names, arguments, strict=False))

    return spec, launch


def test_the_kernel_gets_the_operands_as_they_lie_in_memory(
    launched: tuple[SpecFile, Callable[[Inputs], dict[str, Any]]],
) -> None:
    spec, launch = launched
    m, n, k = shape = (300, 784, 1152)
    for guarded in (False, True):
        inputs = random_inputs(shape, spec.problem, torch.Generator().manual_seed(0), guarded=guarded)
        arguments = launch(inputs)
        for name, extent, operand, tensor in (
            ("a", m, spec.spec.operands.a, inputs.a),
            ("b", n, spec.spec.operands.b, inputs.b.T),
        ):
            descriptor = arguments[f"{name}_desc"]
            k_bytes = k // 2 if operand.dtype == "e2m1" else k
            stored = tensor.T if operand.major == "mn" else tensor
            assert descriptor.base.data_ptr() == tensor.data_ptr()
            assert descriptor.shape == ((k_bytes, extent) if operand.major == "mn" else (extent, k_bytes))
            assert descriptor.strides == (stored.stride(0), 1)
            assert descriptor.base.dtype == tensor.dtype
            if operand.scale is not None:
                scales = arguments[f"{name}_scale_desc"]
                vector = 16 if operand.scale.format == "nvfp4" else 32
                # 1152 / 32 = 36 scales in 9 blocks of 4, 1152 / 16 = 72 in 18.
                # 300 rows in 3 blocks of 128, 784 in 7.
                assert scales.shape == (1, 3 if name == "a" else 7, k // vector // 4, 2, 256)
                assert scales.base.dtype == (torch.float8_e4m3fn if vector == 16 else torch.uint8)
        for name in (*(["c"] if spec.spec.operands.c else []), *spec.problem.vectors):
            read, descriptor = inputs.extras[name], arguments[f"{name}_desc"]
            assert descriptor.base.data_ptr() == read.data_ptr()
            assert (descriptor.shape, descriptor.base.dtype) == (read.shape, read.dtype)
            assert descriptor.strides == read.stride()
        assert arguments["d_desc"].shape == (m, n)
        assert ("tensor_scale_ptr" in arguments) == ("tensor_scale" in spec.spec.epilogue.ops)
