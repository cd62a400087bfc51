"""A compiled kernel, ready to run: its operations, the places of its memory, and its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from gluonsim.findings import carried_out, refusal
from gluonsim.ir.calls import with_calls
from gluonsim.ir.parse import Operation, parse, walk
from gluonsim.ir.ttgir import GenericTtgir
from gluonsim.ir.types import DescriptorType
from gluonsim.operations import (
    OFFSET,
    SIZE,
    arith,
    assembly,
    atomics,
    code,
    control,
    conversions,
    copies,
    device_descriptors,
    elements,
    has_scratch,
    launch_control,
    libdevice,
    loads_stores,
    reductions,
    shapes,
    tensor_cores,
    transfers,
)
from gluonsim.operations.loads_stores import Pointer
from gluonsim.places import Layout, shared_memory_index
from gluonsim.program import Kernel
from gluonsim.tensor_memory import tensor_memory_index
from gluonsim.tensors.addresses import address_of, elements_of, tensor_of, without_sign
from gluonsim.tensors.descriptors import Descriptor, Pixels
from gluonsim.tensors.regions import Storage

FAMILIES = (
    arith,
    assembly,
    atomics,
    control,
    conversions,
    copies,
    device_descriptors,
    elements,
    launch_control,
    libdevice,
    loads_stores,
    reductions,
    shapes,
    tensor_cores,
    transfers,
)
"""The modules that have the operations, a family each: importing them makes the operations known."""


@lru_cache(maxsize=4)
def parsed_kernel(text: str, library: str) -> tuple[Operation, Kernel, frozenset[str]]:
    """Return a module, its kernel, which nothing changes but the division of its layouts, and its files."""
    module = parse(text, library)
    body = walk(module.regions[0])
    return module, _kernel(module), frozenset(frame.file for op in body for frame in op.location.frames)


def _kernel(module: Operation) -> Kernel:
    functions = {op.attributes["sym_name"]: op for op in module.regions[0].operations if op.name == "tt.func"}
    public = [op for op in functions.values() if op.attributes.get("sym_visibility") == "public"]
    if len(public) != 1:
        raise refusal(f"a module of {len(public)} kernels is not known to the simulator")
    function = with_calls(public[0], functions)
    known = code(function.regions[0], FAMILIES)
    layout, tensor_layout = Layout(), Layout()
    for op in walk(function.regions[0]):
        if op.name == "ttg.local_alloc":
            layout.add(op, carried_out(partial(shared_memory_index, op), op.name, op.location))
        elif has_scratch(op):
            layout.add_scratch(op, op.attributes[OFFSET], op.attributes[SIZE])
        elif op.name == "ttng.tmem_alloc":
            tensor_layout.add(op, carried_out(partial(tensor_memory_index, op), op.name, op.location))
    ctas = module.attributes["ttg.num-ctas"]
    pairs = bool(module.attributes.get("ttng.two-ctas"))
    used = frozenset(name for op in walk(function.regions[0]) for name in op.operands)
    warps: int = module.attributes["ttg.num-warps"]
    return Kernel(function, known, layout, tensor_layout, ctas, warps, pairs, used)


def bind(kernel: Kernel, lowered: GenericTtgir) -> dict[str, Any]:
    """Give the function's parameters their values: a descriptor comes with its shape and strides."""
    block = kernel.function.regions[0]
    values: list[Any] = []
    for name, value in lowered.arguments.items():
        position = len(values)
        type_ = block.argument_types[position] if position < len(block.arguments) else None
        if isinstance(type_, DescriptorType):
            values.append(_descriptor(name, value, type_))
            values += [*map(int, value.shape), *map(int, value.strides)]
        elif type_ is not None and hasattr(value, "data_ptr"):
            address = address_of(name, value, type_)
            values.append(Pointer(name, without_sign(address.flat), address.element))
        else:
            values.append(value)
    if len(values) != len(block.arguments):
        raise refusal(f"the kernel takes {len(block.arguments)} values, its arguments make {len(values)}")
    return dict(zip(block.arguments, values, strict=True))


def described(value: Any) -> Tensor | None:
    """Return the tensor that an argument is or describes; None for a number."""
    return _view(value) if hasattr(value, "base") and hasattr(value, "block_shape") else tensor_of(value)


MOST_STRIDE_BYTES = 1 << 40
"""Above the strides that the driver takes."""


def _descriptor(name: str, value: Any, type_: DescriptorType) -> Descriptor:
    """Return a host descriptor as the kernel sees it."""
    base = address_of(name, value.base, type_)
    padding = float("nan") if getattr(value, "padding", "zero") == "nan" else 0.0
    rounds = bool(getattr(value, "round_f32_to_tf32", False))
    shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.strides))
    lower = getattr(value, "pixel_box_lower_corner", None)
    pixels: Pixels | None = None
    if lower is not None:
        steps: Sequence[int] = value.element_strides or [1] * len(shape)
        pixels = Pixels(tuple(lower), tuple(value.pixel_box_upper_corner), tuple(steps[1:-1]))
    if any(not 0 <= stride * base.flat.element_size() < MOST_STRIDE_BYTES for stride in strides):
        message = f"the strides of {name} are {list(strides)}: a descriptor has them from 0 to 2**40 bytes"
        raise refusal(message, code="bad-launch")
    return Descriptor(name, base.flat, base.element, shape, strides, padding, rounds, pixels)


def _view(descriptor: Any) -> Tensor | None:
    """Return the tensor of a host descriptor, or its base if the descriptor reaches beyond the storage."""
    base = tensor_of(descriptor.base)
    if base is None or base is not descriptor.base:
        return base
    shape, strides = tuple(map(int, descriptor.shape)), tuple(map(int, descriptor.strides))
    first = int(base.storage_offset())
    last = first + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return base.as_strided(shape, strides, first) if last < Storage.of(base).elements else base


def changed_tensors(values: Any) -> list[Tensor]:
    """Return the tensors that a launch may change, each storage once."""
    found: dict[int, Tensor] = {}
    for value in values:
        tensor = tensor_of(value)
        if tensor is None:
            tensor = tensor_of(getattr(value, "base", None))
        if tensor is not None:
            found.setdefault(tensor.untyped_storage().data_ptr(), _flat(tensor))
    return list(found.values())


def _flat(tensor: Tensor) -> Tensor:
    """Return all bits of a tensor's storage, in few elements: they are compared one by one."""
    data = elements_of(tensor).view(torch.uint8)
    return data if data.numel() % 8 else data.view(torch.int64)
