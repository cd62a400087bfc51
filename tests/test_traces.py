"""A trace accepts the tensors that a call accepts: on meta, and with extents that are symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from drawn import random_inputs
from fake_gpu import Cuda, always, on_a_fake_gpu
from fake_triton import on_a_fake_driver
from modules import made, module_file, spec_file
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gemmgen.module import import_generated

STEMS = (
    "h100_bf16",
    "h100_bf16_nn",
    "h100_bf16_residual",
    "h100_bf16_misaligned",
    "h100_bf16_split8_bias",
    "h100_e4m3_scaled",
    "h100_e4m3_blockwise",
    "h100_e4m3_blockwise_wgrad",
    "h100_e4m3_ue8m0",
    "h100_bf16_batched_accumulated",
    "h100_bf16_grouped",
    "h100_e4m3_blockwise_grouped",
    "h100_bf16_wgrad",
)
"""Modules of every layout of operands, with vectors, C, copies, scales of blocks, and groups."""
SHAPE = (48, 128, 256)


def turned(tensor: Tensor) -> Tensor:
    """Return the tensor with its last two dimensions in the other order in memory."""
    return tensor.mT.clone(memory_format=torch.contiguous_format).mT if tensor.dim() > 1 else tensor


def with_gaps(tensor: Tensor) -> Tensor:
    """Return the tensor with another element after each one of its last dimension."""
    return torch.stack([tensor, tensor], -1)[..., 0]


def padded(tensor: Tensor) -> Tensor:
    """Return the tensor in rows that are one element longer."""
    is_turned = tensor.dim() > 1 and tensor.stride(-1) != 1
    matrix = tensor.mT if is_turned else tensor
    longer = torch.cat([matrix, matrix[..., :1]], -1)[..., :-1]
    return longer.mT if is_turned else longer


def shortened(tensor: Tensor) -> Tensor:
    """Return all but the last index of the first dimension."""
    return tensor[:-1]


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda tensor: tensor,
    "turned": turned,
    "with gaps": with_gaps,
    "padded": padded,
    "shortened": shortened,
    "of another type": lambda tensor: tensor.double(),
    "of more dimensions": lambda tensor: tensor[None, None],
}


def tensors_of(module: ModuleType, stem: str) -> dict[str, Tensor]:
    """Return the tensors of a call that is right, by the names of the operator, and `out`."""
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs(SHAPE, problem, torch.Generator().manual_seed(1))
    found = {"a": inputs.a, "b": inputs.b, **inputs.extras}
    names = module.COMPUTES["inputs"]
    blocks = [name for name in names if "K blocks" in module.ARGUMENTS[name]["axes"]]
    arranged = {name: module.arrange_scales(name, found[name]) for name in blocks}
    extents = problem.extents_of_d(SHAPE[0], SHAPE[1])
    out = torch.zeros(extents, dtype=module.ARGUMENTS["out"]["dtype"])
    return {**{name: found[name] for name in names}, **arranged, "out": out}


def error_of(call: Callable[[], object]) -> str:
    """Return the message with which a call is refused; an empty string if it is accepted."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def accepted(module: ModuleType, given: dict[str, Tensor]) -> tuple[str, str, str]:
    """Return the errors of a call on a GPU that is not there, on meta, and of a trace with symbols."""

    def call(tensors: Mapping[str, Tensor]) -> Tensor:
        a, b, *_ = tensors.values()
        return module.matmul(a, b, **{name: each for name, each in tensors.items() if name not in "ab"})

    def traced(*tensors: Tensor) -> Tensor:
        return call(dict(zip(given, tensors, strict=True)))

    # Memory at multiples of 16 bytes, which is all that a trace cannot see.
    real = {name: each.as_subclass(Cuda) for name, each in given.items()}
    meta = {name: on_meta(each) for name, each in given.items()}
    trace: Any = make_fx(traced, tracing_mode="symbolic")
    return error_of(lambda: call(real)), error_of(lambda: call(meta)), error_of(lambda: trace(*meta.values()))


@pytest.mark.sample(8)
@pytest.mark.parametrize("with_out", [False, True], ids=["", "out"])
@pytest.mark.parametrize("stem", STEMS)
def test_a_trace_refuses_what_a_call_refuses(
    stem: str, with_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file(stem))
    on_a_fake_driver(module, monkeypatch)
    if module.call.copy:
        monkeypatch.setattr(module.call, "copy", always(None))
    right = tensors_of(module, stem)
    if not with_out:
        del right["out"]
    different: list[tuple[str, str, tuple[str, str, str]]] = []
    refused = 0
    for name in right:
        for change, changed in CHANGES.items():
            if with_out and name != "out":
                continue
            found = accepted(module, {**right, name: changed(right[name])})
            if len({bool(each) for each in found}) > 1 or found[0] != found[1]:
                different.append((name, change, found))
            refused += bool(found[0])
            assert not (change == "as it is" and found[0])
    assert different == []
    assert refused > 1


@pytest.mark.parametrize("stem", ["h100_e4m3_blockwise", "h100_e4m3_ue8m0"])
def test_scales_by_rows_are_refused_without_memory(stem: str) -> None:
    module = import_generated(module_file(stem))
    right = {name: on_meta(each) for name, each in tensors_of(module, stem).items()}
    a, b, a_scale, b_scale = (right[name] for name in module.COMPUTES["inputs"])
    by_rows = cast(Any, torch).empty_like(a_scale, memory_format=torch.contiguous_format)
    assert module.matmul(a, b, a_scale=a_scale, b_scale=b_scale).shape == SHAPE[:2]
    with pytest.raises(ValueError, match=r"^a_scale must have strides .*: pass arrange_scales\("):
        module.matmul(a, b, a_scale=by_rows, b_scale=b_scale)
