"""A module with and without gemmgen_launch.py: neither path launches a kernel for a wrong call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, SecondCuda, always, cuda, on_a_fake_gpu
from fake_triton import FakeDriver, on_a_fake_driver, refusal
from modules import EVERY_SPEC, module_file
from torch import Tensor

from gemmgen.module import import_generated

BF16 = torch.bfloat16
REFUSED = (TypeError, ValueError)


@dataclass
class Path:
    """A module on a driver that is not there."""

    module: ModuleType
    driver: FakeDriver

    @property
    def launches(self) -> int:
        return len(self.driver.jit) + len(self.driver.direct)


Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Return what makes a module twice: with the launcher, and alone."""

    def made(stem: str) -> tuple[Path, Path]:
        on_a_fake_gpu(monkeypatch)
        found: list[Path] = []
        with_launcher = import_generated(module_file(stem))
        found.append(Path(with_launcher, on_a_fake_driver(with_launcher, monkeypatch)))
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, "gemmgen_launch", None)
            with pytest.warns(UserWarning, match="without gemmgen_launch.py: slower"):
                alone = import_generated(module_file(stem))
        found.append(Path(alone, on_a_fake_driver(alone, monkeypatch)))
        found[1].driver.set_current_device(0)
        found[0].driver.set_current_device(0)
        return found[0], found[1]

    return made


def one_element_past(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape that starts one element after a multiple of 16 bytes."""
    flat = torch.zeros(tensor.numel() + 8, dtype=tensor.dtype)
    return flat[1 : 1 + tensor.numel()].view(tensor.shape).as_subclass(Cuda)


A, B = cuda(16, 64), cuda(32, 64).T
BAD: dict[str, tuple[Tensor, Tensor, str, str, str]] = {
    "one dimension": (cuda(64), B, "a", "shape [64]", "a and b"),
    "b of one dimension": (A, cuda(64), "b", "shape [64]", "a and b"),
    "b of three dimensions": (A, cuda(1, 64, 32), "b", "shape [1, 64, 32]", "a and b"),
    "another type": (A.half(), B, "a", "torch.float16", "a"),
    "on the CPU": (torch.zeros(16, 64, dtype=BF16), B, "a", "cpu", "a"),
    "another GPU": (A, torch.zeros(32, 64, dtype=BF16).as_subclass(SecondCuda).T, "b", "cuda:1", "b"),
    "another K": (A, cuda(32, 56).T, "b", "[56, 32]", "b"),
    "a B that is not transposed": (A, cuda(32, 64), "b", "[32, 64]", "b"),
    "a transposed B of another K": (A, cuda(64, 32).T, "b", "[32, 64]", "b"),
    "rows of another order": (A, cuda(64, 32), "b", "strides (32, 1)", "b"),
    "a misaligned address": (one_element_past(A), B, "a", "2", "a"),
    "misaligned rows": (cuda(16, 65)[:, :64], B, "a", "65", "a"),
    "a gradient": (cuda(16, 64).requires_grad_(), B, "a", "grad", "a"),
    "too large extents": (cuda(1, 64).expand(2**31, 64), B, "a", "2147483648", "M, N and K"),
}
"""Tensors that no path takes, what the launcher names and found, and what a module without it names."""


@pytest.mark.parametrize("case", BAD)
def test_both_paths_refuse_a_wrong_tensor_before_anything_is_launched(paths: Paths, case: str) -> None:
    a, b, name, found, own = BAD[case]
    for path, text in zip(paths("h100_bf16"), (refusal(name, found), f"^{own} must "), strict=True):
        with pytest.raises(REFUSED, match=text):
            path.module.matmul(a, b)
        assert path.launches == 0


def test_both_paths_refuse_another_gpu(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    found = paths("h100_bf16")
    on_a_fake_gpu(monkeypatch, (10, 0))
    for path, text in zip(
        found, ("needs capability (9, 0)", "needs a GPU of capability (9, 0)"), strict=True
    ):
        with pytest.raises(ValueError, match="this kernel ") as refused:
            path.module.matmul(A, B)
        assert text in str(refused.value)
        assert path.launches == 0


def written(path: Path) -> Any:
    """Return the tensor that the last launch writes."""
    *_, out = path.driver.jit[-1][-1]
    return out.base


def test_both_paths_take_slices_of_one_buffer(paths: Paths) -> None:
    for path in paths("h100_bf16"):
        rows, columns = cuda(128, 64), cuda(32, 256)
        for a, out in ((rows[:64], rows[64:]), (columns[:, :64], columns[:, 64:128])):
            assert path.module.matmul(a, cuda(64, 64).T, out=out) is out
        assert path.launches == 2


def test_an_out_that_is_read_is_refused_or_written_after_the_kernel(paths: Paths) -> None:
    launcher, alone = paths("h100_bf16")
    a, b = cuda(64, 64), cuda(64, 64).T
    with pytest.raises(ValueError, match="out must share no memory with a"):
        launcher.module.matmul(a, b, out=a)
    assert launcher.launches == 0
    before = a._version
    assert alone.module.matmul(a, b, out=a) is a
    assert a._version == before + 1
    assert written(alone).data_ptr() not in (a.data_ptr(), b.data_ptr())


@pytest.mark.parametrize(
    "out",
    [cuda(16, 24), cuda(16), cuda(16, 32).half(), cuda(1, 16, 32)],
    ids=["columns", "dimensions", "another type", "one dimension more"],
)
def test_both_paths_refuse_an_out_of_another_shape_or_type(paths: Paths, out: Tensor) -> None:
    for path in paths("h100_bf16"):
        before = out.clone()
        with pytest.raises((ValueError, TypeError), match=r"^out must "):
            path.module.matmul(A, B, out=out)
        assert torch.equal(out, before)
        assert path.launches == 0


def test_a_workspace_of_another_problem_is_refused_or_left_alone(paths: Paths) -> None:
    launcher, alone = paths("h100_bf16_split8_bias")
    bias = cuda(512)
    a, b = cuda(256, 64), cuda(512, 64).T
    small = launcher.module.make_workspace(8, 8, "cuda")
    others = (small[0].half(), *launcher.module.make_workspace(256, 512, "cuda")[1:])
    second = tuple(
        each.as_subclass(Tensor).as_subclass(SecondCuda)
        for each in launcher.module.make_workspace(256, 512, "cuda")
    )
    for workspace in (small, others, second):
        with pytest.raises(ValueError, match=r"^workspace must be "):
            launcher.module.matmul(a, b, column_bias=bias, workspace=workspace)
        alone.module.matmul(a, b, column_bias=bias, workspace=workspace)
        passed = {each.data_ptr() for each in alone.driver.jit[-1][-1][-2:]}
        assert passed.isdisjoint({each.data_ptr() for each in workspace})
    assert launcher.launches == 0


@pytest.mark.parametrize("stem", ["b200_mxfp8", "b200_mxfp4", "b200_mxfp8_mxfp4", "b200_mxfp4_mxfp8"])
def test_both_paths_check_the_scales_of_blocks(
    paths: Paths, stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = paths(stem)
    on_a_fake_gpu(monkeypatch, (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", always(_Gpu()))
    m, n, k = 16, 32, 256
    for path in found:
        tables = path.module.ARGUMENTS
        sizes = {"M": m, "N": n, "K": k, "P": k // 2}
        a = torch.zeros([sizes[axis] for axis in tables["a"][1]], dtype=torch.uint8)
        b = torch.zeros([sizes[axis] for axis in reversed(tables["b"][1])], dtype=torch.uint8)
        a, b = (each.view(tables[name][0]).as_subclass(Cuda) for name, each in (("a", a), ("b", b)))
        dtype = tables["a_scale"][0]
        vector = path.module.COMPUTES["scale_vector"]
        right = [
            torch.zeros(rows, k // vector, dtype=torch.uint8).view(dtype).as_subclass(Cuda) for rows in (m, n)
        ]
        for wrong in (right[0][:, :-1], right[1], right[0].view(torch.uint8)):
            with pytest.raises(REFUSED, match=r"^a_scale must "):
                path.module.matmul(a, b.T, a_scale=wrong, b_scale=right[1])
        assert path.launches == 0


class _Gpu:
    name, major, minor, multi_processor_count = "NVIDIA B200", 10, 0, 148


@pytest.mark.parametrize("spec", EVERY_SPEC, ids=lambda path: path.stem)
def test_each_module_has_a_check_of_each_input(spec: Any) -> None:
    """By text: a module alone names each of its inputs in one of its checks."""
    file = module_file(spec.stem)
    module = import_generated(file)
    source = file.read_text(encoding="utf-8")
    body = source[source.index("def plain_matmul(") : source.index("    d = a.new_empty(")]
    assert [name for name in module.COMPUTES["inputs"] if f'("{name}", ' not in body] == []
