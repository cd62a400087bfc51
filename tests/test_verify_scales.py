"""verify of Hopper modules with scales of blocks, without a GPU: what their own wrappers refuse and take."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from modules import GROUPED_SPECS, HOPPER_SPECS, module_file, spec_file
from simulated import simulated
from torch import Tensor

from gemmgen.features.block_scales.other_scales import other_scales
from gemmgen.features.checking import sides_of
from gemmgen.module import arrange_scales_of, import_generated
from gemmgen.numerics.case import Case
from gemmgen.numerics.encoding import TORCH_DTYPES, bits, rounded
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.quantized import quantized
from gemmgen.numerics.reference import reference
from gemmgen.problem import Matmul, Shape
from gemmgen.spec import SpecFile, load_spec
from gemmgen.verify import verify

SHAPES: tuple[Shape, ...] = ((37, 256, 400), (1, 128, 656), (64, 128, 64), (1, 128, 16))
"""Several blocks of K and an odd number of rows; a single row; a single block; a single scale."""
SHAPES_OF_GROUPS: tuple[Shape, ...] = ((37, 256, 400), (1, 128, 16))
MOST_GROUPS = 32
"""Kernels of more groups have the wrappers of others, and their references take long."""
STEM, MASKED, UE8M0 = "h100_e4m3_blockwise", "h100_e4m3_blockwise_masked", "h100_e4m3_ue8m0"
Call = Callable[..., Any]


def is_checked(path: Path) -> bool:
    problem = load_spec(path).problem
    return problem.scales_sums and (problem.groups is None or problem.groups.count <= MOST_GROUPS)


SCALED = [path for path in (*HOPPER_SPECS, *GROUPED_SPECS) if is_checked(path)]


def on_the_cpu(matmul: Call) -> Call:
    """Return a module's `matmul` as one that takes tensors of the CPU, and returns such."""

    def call(*inputs: Tensor, **others: Tensor) -> Any:
        named = {name: tensor.as_subclass(Cuda) for name, tensor in others.items()}
        d = matmul(*(tensor.as_subclass(Cuda) for tensor in inputs), **named)
        if isinstance(d, Tensor):
            return others.get("out", d.as_subclass(Tensor))
        return tuple(each.as_subclass(Tensor) for each in d)

    return call


def nothing(programs: int, arguments: list[Any]) -> None:
    """Launch nothing."""


def computing(matmul: Call, problem: Matmul) -> Call:
    """Return a `matmul` whose launches do nothing as one that writes what the spec says."""

    def call(a: Tensor, b: Tensor, **others: Tensor) -> Any:
        found = on_the_cpu(matmul)(a, b, **others)
        extras = {name: each for name, each in others.items() if not name.startswith("out")}
        inputs = Inputs(a, b, extras, problem.b_blocks, sides=sides_of(problem))
        outputs: tuple[Tensor, ...] = (found,) if isinstance(found, Tensor) else found
        counts = outputs[0].shape[:-1]
        rows = inputs.computed_rows(torch.arange(math.prod(counts)).view(*counts, 1))[:].flatten()
        if not len(rows):  # no group has any
            return found
        exact = reference(inputs, problem)
        if scale := problem.d_scale:
            results = quantized(
                exact, scale.vector, *(TORCH_DTYPES[t.name] for t in (problem.d, scale.dtype))
            )
        else:
            results = (rounded(exact, outputs[0].dtype),)
        for output, result in zip(outputs, results, strict=True):
            bits(output.flatten(0, -2))[rows] = bits(result)
        return found

    return call


class Wrapped:
    """A module without a GPU whose wrapper is its own, and whose launches are right."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        on_a_fake_gpu(monkeypatch)
        self.module, self.source = import_generated(module_file(path.stem)), load_spec(path)
        launch_into(self.module, nothing)
        self.module.__dict__["matmul"] = computing(self.module.matmul, self.source.problem)

    def failures(self, *shapes: Shape) -> list[str]:
        found = verify(self.module, self.source, shapes, repeats=1, device="cpu")
        return [str(check) for check in found.failures]


@pytest.mark.parametrize("path", SCALED, ids=lambda path: path.stem)
def test_a_right_launch_passes_every_check_in_the_modules_own_wrapper(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = Wrapped(path, monkeypatch)
    assert wrapped.failures(*(SHAPES_OF_GROUPS if wrapped.source.problem.groups else SHAPES)) == []


# --- what the checks of scales find


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Wrapped:
    return Wrapped(spec_file(STEM), monkeypatch)


def test_both_layouts_of_both_scales_are_checked(wrapped: Wrapped) -> None:
    checks = verify(wrapped.module, wrapped.source, SHAPES, repeats=1, device="cpu").checks
    made = {(check.shape, check.what) for check in checks}
    for name, right in (("a_scale", "by columns"), ("b_scale", "by rows")):
        for label in ("by rows", "by columns"):
            what = f"{name} {label}, arranged: elements that differ"
            assert {shape for shape in SHAPES if (shape, what) in made} == {*SHAPES}
            what = f"{name} {label}: accepted, though the kernel cannot read them"
            refused = {shape for shape in SHAPES if (shape, what) in made}
            # 37 rows of A have gaps in memory, so that neither layout is right. A single scale always is.
            assert ((37, 256, 400) in refused) == (label != right or name == "a_scale")
            assert (1, 128, 16) not in refused


def test_a_module_that_takes_scales_of_any_strides_fails(wrapped: Wrapped) -> None:
    matmul, arrange = wrapped.module.matmul, wrapped.module.arrange_scales

    def arranging(a: Tensor, b: Tensor, **others: Tensor) -> Any:
        scales = {name: arrange(name, others[name]) for name in ("a_scale", "b_scale")}
        return matmul(a, b, **(others | scales))

    wrapped.module.__dict__["matmul"] = arranging
    assert wrapped.failures((37, 256, 400)) == [
        f"37x256x400 {which}: accepted, though the kernel cannot read them: 1, the limit is 0"
        for which in ("a_scale by rows", "a_scale by columns", "b_scale by columns")
    ]


def test_scales_of_other_rows_are_found(wrapped: Wrapped) -> None:
    matmul = wrapped.module.matmul

    def rolled(a: Tensor, b: Tensor, *, a_scale: Tensor, **others: Tensor) -> Any:
        matmul(a, b, a_scale=a_scale, **others)  # which refuses scales of other strides
        rows = torch.empty_strided(a_scale.shape, a_scale.stride()).copy_(a_scale.roll(1, 0))
        return matmul(a, b, a_scale=rows, **others)

    wrapped.module.__dict__["matmul"] = rolled
    found = wrapped.failures((37, 256, 400))
    for run in ("own output", "out=", "strided"):
        assert any(text.startswith(f"37x256x400 {run}: relative error: ") for text in found)


def test_a_refusal_that_does_not_say_what_to_pass_fails(wrapped: Wrapped) -> None:
    matmul = wrapped.module.matmul

    def terse(a: Tensor, b: Tensor, **others: Tensor) -> Any:
        try:
            return matmul(a, b, **others)
        except ValueError as error:
            raise ValueError("wrong strides") from error

    wrapped.module.__dict__["matmul"] = terse
    assert wrapped.failures((37, 256, 400)) == ["37x256x400 other scales: ValueError: wrong strides"]


def test_scales_that_are_arranged_wrongly_are_found(wrapped: Wrapped) -> None:
    arrange = wrapped.module.arrange_scales

    def rolled(name: str, scales: Tensor) -> Tensor:
        return arrange(name, scales.roll(1, -1) if name == "b_scale" else scales)

    wrapped.module.__dict__["arrange_scales"] = rolled
    first, second = wrapped.failures((37, 256, 400))
    assert first.startswith("37x256x400 b_scale by rows, arranged: elements that differ: ")
    assert second.startswith("37x256x400 b_scale by columns, arranged: elements that differ: ")


def test_a_module_without_a_function_that_arranges_scales_fails_one_check(wrapped: Wrapped) -> None:
    del wrapped.module.__dict__["arrange_scales"]
    assert wrapped.failures((37, 256, 400)) == [
        "37x256x400 other scales: AttributeError: the module has no function `arrange_scales`"
    ]


@pytest.mark.parametrize("stem", [STEM, MASKED, UE8M0])
def test_a_kernel_reads_arranged_scales(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself runs, in the simulator."""
    module = simulated(stem, monkeypatch)
    source: SpecFile = load_spec(spec_file(stem))
    case = Case(
        matmul=on_the_cpu(module.matmul),
        shape=(37, 136, 272),
        problem=source.problem,
        generator=torch.Generator().manual_seed(0),
        repeats=1,
        promote_k=source.promote_k,
        arrange_scales=arrange_scales_of(module),
        sides=sides_of(source.problem),
    )
    checks = list(other_scales(case))
    assert [str(check) for check in checks if not check.passed] == []
    assert len(checks) == 8  # three blocks of K: neither layout is the one that the kernel reads
