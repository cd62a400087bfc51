"""What a generated kernel is launched with, by the names of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gemmgen.problem.dtype import TORCH_DTYPES
from gemmgen.problem.formula import BLOCK_SCALES
from gemmgen.problem.inputs import Inputs
from gemmgen.spec.model import Spec


def kernel_arguments(module: ModuleType, spec: Spec, inputs: Inputs, d: Tensor) -> list[Any]:
    """Return the arguments of a module's ``matmul_kernel``, in order, as its wrapper makes them.

    ``x_desc`` is a TMA descriptor over the row-major form of x, with the box and layout of
    ``TMA_BOXES["x"]`` (``"out"`` for D, which is d [M, N]); ``x_ptr`` is the tensor x. The descriptor of a
    block-scaled operand's scales is over what the module's ``pack_scales`` makes of them, ue8m0 as bytes.

    Raises KeyError for an argument that is neither.
    """
    return list(_arguments(module, spec, inputs, d))


def _arguments(module: ModuleType, spec: Spec, inputs: Inputs, d: Tensor) -> Iterator[Any]:
    from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
        TensorDescriptor,
    )

    stored = row_major(spec, inputs, d)
    boxes: Mapping[str, tuple[list[int], Any]] = module.TMA_BOXES
    names: list[str] = list(module.matmul_kernel.arg_names)
    for argument in names:
        name, _, kind = argument.rpartition("_")
        if kind == "ptr":
            yield stored[name]
        elif kind == "desc":
            box, layout = boxes["out" if name == "d" else name]
            tensor = packed_scales(module, stored[name]) if name in BLOCK_SCALES else stored[name]
            rounds = name in ("a", "b") and spec.operands.a.dtype == "tf32"
            yield TensorDescriptor.from_tensor(tensor, box, layout, round_f32_to_tf32=rounds)
        else:
            raise KeyError(argument)


def packed_scales(module: ModuleType, scales: Tensor) -> Tensor:
    """Return scales of blocks as a module's kernel reads them: 5-D, packed, uint8 for ue8m0."""
    packed: Tensor = module.pack_scales(scales)
    return packed.view(torch.uint8) if packed.dtype == TORCH_DTYPES["ue8m0"] else packed


def row_major(spec: Spec, inputs: Inputs, d: Tensor) -> dict[str, Tensor]:
    """Return every tensor of a call by its name, matrices with contiguous rows, as they lie in memory."""
    a, b = inputs.a, inputs.b
    return {
        "a": a.T if spec.operands.a.major == "mn" else a,
        "b": b if spec.operands.b.major == "mn" else b.T,
        **inputs.extras,
        "d": d,
    }
