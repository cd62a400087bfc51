"""Arguments of a launch as addresses: the storage that each one leads into, and the element that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.types import Type, pointee_of
from gluonsim.tensors.regions import Storage


@dataclass(frozen=True)
class Address:
    """An element of a storage, or a place before or behind it."""

    flat: Tensor
    """The storage as one dimension."""
    element: int
    """Elements from the first one of the storage; negative before it."""


def tensor_of(value: Any) -> Tensor | None:
    """Return the tensor that a value is, or the one that it holds and gives an address of; else None."""
    if isinstance(value, Tensor):
        return value
    if not hasattr(value, "data_ptr"):
        return None
    held = [each for each in cast("dict[str, Any]", vars(value)).values() if isinstance(each, Tensor)]
    return held[0] if len({each.untyped_storage().data_ptr() for each in held}) == 1 else None


def address_of(name: str, value: Any, type_: Type) -> Address:
    """Return the address that an argument gives.

    `type_` is the kernel's: an argument that is no tensor may have other elements than its tensor.

    Raises:
        GemmgenError: It is not on the CPU, no tensor is known for it, or it is within an element.
    """
    tensor = tensor_of(value)
    if tensor is None:
        raise refusal(f"{name} gives an address, and it holds no tensor that has it", code="bad-launch")
    if tensor.device.type != "cpu":
        raise refusal(f"{name} is on {tensor.device}: tensors must be on the CPU", code="bad-launch")
    if tensor is value:
        return Address(elements_of(tensor), int(tensor.storage_offset()))
    first: int = value.data_ptr() - tensor.untyped_storage().data_ptr()
    dtype = pointee_of(type_)
    size = dtype.itemsize
    if first % size or tensor.untyped_storage().nbytes() % size:
        raise refusal(f"the address of {name} is within an element of its tensor", code="bad-launch")
    return Address(elements_of(tensor).view(dtype), first // size)


_SIGNED = {
    torch.uint8: torch.int8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def without_sign(flat: Tensor) -> Tensor:
    """Return integers as registers have them: int8 to int64 stand for the bits of unsigned ones too."""
    return flat.view(_SIGNED.get(flat.dtype, flat.dtype))


def elements_of(tensor: Tensor) -> Tensor:
    """Return all of a tensor's storage as one dimension."""
    return tensor.as_strided((Storage.of(tensor).elements,), (1,), 0)
