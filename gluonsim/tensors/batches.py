"""Tensors inside of a function that combines elements: all elements at once, as dimensions that come first.

Such a function is written for single elements. Here it is applied to whole tensors, so a number is a tensor
with a value for each element, and a tensor has the dimensions of its type after the elements' dimensions. A
value that is the same for all elements may lack these.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from gluonsim.ir.types import Distributed, Type


def rank(type_: Type) -> int:
    """Return the number of dimensions of a type; 0 for a number or a pointer."""
    return len(type_.shape) if isinstance(type_, Distributed) else 0


def elements(value: Tensor, type_: Type) -> tuple[int, ...]:
    """Return the extents of the elements that a value of a type is for; empty if it is for all of them."""
    return tuple(value.shape[: value.dim() - rank(type_)])


def axis_in(value: Tensor, type_: Type, axis: int) -> int:
    """Return the dimension of a value that is an axis of its type."""
    return value.dim() - rank(type_) + axis


def widened(value: Tensor, type_: Type, added: int) -> Tensor:
    """Return a value of a type with `added` dimensions of extent 1 between the elements' and the type's."""
    of_elements = elements(value, type_)
    return value.reshape(*of_elements, *[1] * added, *value.shape[len(of_elements) :])


def of_all(*values: Tensor) -> list[Tensor]:
    """Return values of one type, each with the dimensions of the elements of all of them."""
    return list(cast(Any, torch).broadcast_tensors(*values))
