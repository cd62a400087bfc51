"""A module that is copied without gemmgen_launch.py: it launches what it launches with that file."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, cuda, launch_into, on_a_fake_gpu
from modules import module_file
from torch import Tensor

from gemmgen.module import import_generated

E4M3, FP32, INT, UE8M0 = torch.float8_e4m3fn, torch.float32, torch.int32, torch.float8_e8m0fnu
M, N, K, GROUPS = 48, 256, 256, 5


def matrices(dtype: torch.dtype = torch.bfloat16, **further: Tensor) -> dict[str, Any]:
    return {"a": cuda(M, K, dtype=dtype), "b": cuda(N, K, dtype=dtype).T, **further}


def split_with_a_bias(_: ModuleType) -> dict[str, Any]:
    return matrices(column_bias=cuda(N))


def split_with_a_workspace(module: ModuleType) -> dict[str, Any]:
    memory = module.make_workspace(M, N, torch.device("cuda", 0))
    return matrices(column_bias=cuda(N), workspace=memory)


def groups(_: ModuleType) -> dict[str, Any]:
    return matrices(b=cuda(GROUPS, N, K).mT, offs=cuda(GROUPS, dtype=INT))


def blocks(_: ModuleType) -> dict[str, Any]:
    scales = {"a_scale": cuda(K // 128, M, dtype=FP32).T, "b_scale": cuda(N // 128, 4, dtype=FP32)[:, :2]}
    return matrices(E4M3, **scales)


def packed_blocks(module: ModuleType) -> dict[str, Any]:
    def packed(rows: int) -> Tensor:
        return module.pack_scales(torch.ones(rows, K // 32).to(UE8M0)).as_subclass(Cuda)

    return matrices(E4M3, a_scale=packed(M), b_scale=packed(N))


Kind = tuple[str, Callable[[ModuleType], dict[str, Any]]]
"""The stem of a module, and what makes the tensors of a call by name, without those that are written."""
KINDS: dict[str, Kind] = {
    "two matrices": ("h100_bf16", lambda _: matrices()),
    "groups": ("h100_bf16_grouped", groups),
    "split-K": ("h100_bf16_split8_bias", split_with_a_bias),
    "split-K in a workspace of the caller": ("h100_bf16_split8_bias", split_with_a_workspace),
    "parallel split-K": ("h100_bf16_split8_parallel", lambda _: matrices()),
    "scales of blocks": ("h100_e4m3_blockwise", blocks),
    "packed scales of blocks": ("b200_mxfp8", packed_blocks),
    "sums beside D": ("h100_bf16_gated_saved", lambda _: matrices(b=cuda(2 * N, K).T)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    stem, call = KINDS[request.param]
    on_a_fake_gpu(monkeypatch, (10, 0) if stem.startswith("b200") else (9, 0))
    return stem, call


def alone(stem: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module that is imported from a copy in an empty folder, where no launcher can be found."""
    copied = Path(shutil.copy(module_file(stem), folder))
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "gemmgen_launch", None)
        with pytest.warns(UserWarning, match=r"without gemmgen_launch\.py: calls need `out`"):
            return import_generated(copied)


def launches(module: ModuleType, given: dict[str, Any]) -> list[Any]:
    """Return each launch of a call: its programs, and its arguments by address and form."""
    places = {each.data_ptr() for each in given.values() if isinstance(each, Tensor)}
    places |= {each.data_ptr() for each in given.get("workspace", ())}
    found: list[Any] = []

    def told(argument: Any) -> Any:
        if isinstance(argument, int):
            return argument
        if not isinstance(argument, Tensor):  # a descriptor
            form = argument.block_shape, argument.layout, argument.round_f32_to_tf32
            return argument.base.data_ptr(), [*argument.shape], [*argument.strides], *form
        place = argument.data_ptr()
        return place if place in places else (argument.dtype, argument.shape)  # memory for sums

    launch_into(module, lambda programs, arguments: found.append((programs, [*map(told, arguments)])))
    result = module.matmul(**given)
    assert (result[0] if isinstance(result, tuple) else result) is given["out"]
    return found


def test_a_module_alone_launches_what_it_launches_with_the_launcher(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem, call = kind
    by_itself, with_launcher = alone(stem, tmp_path, monkeypatch), import_generated(module_file(stem))
    given = {**call(by_itself), "out": cuda(M, N)}
    if "written" in by_itself.COMPUTES:
        given["saved"] = cuda(M, 2 * N)
    found = launches(by_itself, given)
    assert found == launches(with_launcher, given)
    assert len(found) == 1 + ("parallel" in stem)


def test_autograd_learns_of_what_a_module_alone_writes(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stem, call = kind
    module = alone(stem, tmp_path, monkeypatch)
    given = {**call(module), "out": cuda(M, N)}
    given |= {name: cuda(M, 2 * N) for name in module.COMPUTES.get("written", ())}
    launch_into(module, lambda _, __: None)
    before = {name: tensor._version for name, tensor in given.items() if isinstance(tensor, Tensor)}
    module.matmul(**given)
    written = {name for name, version in before.items() if given[name]._version > version}
    assert written == {"out", *module.COMPUTES.get("written", ())}


def test_a_module_alone_aligns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    module = alone("h100_bf16_misaligned", tmp_path, monkeypatch)
    with pytest.raises(
        RuntimeError, match=r"^align needs gemmgen_launch\.py, which is not beside this file$"
    ):
        module.align("a", cuda(M, K))


def test_a_module_alone_makes_no_d(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stem, call = kind
    module = alone(stem, tmp_path, monkeypatch)
    launched: list[Any] = []
    launch_into(module, lambda _, arguments: launched.append(arguments))
    with pytest.raises(TypeError, match=r"^out must be given: gemmgen_launch\.py, which makes a D, is not"):
        module.matmul(**call(module))
    assert launched == []
