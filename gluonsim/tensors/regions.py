"""Elements of a tensor's storage, as a view or by their numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Storage(NamedTuple):
    """What the elements of a tensor lie in."""

    address: int
    elements: int

    @classmethod
    def of(cls, tensor: Tensor) -> Storage:
        """Return a tensor's."""
        storage = tensor.untyped_storage()
        return cls(storage.data_ptr(), storage.nbytes() // tensor.element_size())


@dataclass(frozen=True, eq=False)
class Region(ABC):
    """Elements of a storage."""

    tensor: Tensor

    @cached_property
    def storage(self) -> Storage:
        """What they lie in."""
        return Storage.of(self.tensor)

    @cached_property
    @abstractmethod
    def key(self) -> Hashable:
        """The same for the same elements."""

    @cached_property
    @abstractmethod
    def empty(self) -> bool:
        """Return whether there are none."""

    @abstractmethod
    def values(self) -> Tensor:
        """Return their values, which are only to be read."""

    @abstractmethod
    def look(self, marks: Tensor) -> Tensor:
        """Return their marks, given one for each element of the storage; what returns is only to be read."""

    @abstractmethod
    def mark(self, marks: Tensor, values: Tensor | int) -> None:
        """Change their marks, to one value or to one for each."""


@dataclass(frozen=True, eq=False)
class Slice(Region):
    """Elements that `tensor` is a view of."""

    @cached_property
    def key(self) -> Hashable:
        """See `Region`."""
        tensor = self.tensor
        return self.storage, int(tensor.storage_offset()), tensor.shape, tensor.stride()

    @cached_property
    def empty(self) -> bool:
        """See `Region`."""
        return self.tensor.numel() == 0

    def values(self) -> Tensor:
        """See `Region`."""
        return self.tensor

    def look(self, marks: Tensor) -> Tensor:
        """See `Region`."""
        tensor = self.tensor
        return marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def mark(self, marks: Tensor, values: Tensor | int) -> None:
        """See `Region`."""
        if isinstance(values, Tensor):
            self.look(marks).copy_(values)
        else:
            self.look(marks).fill_(values)


@dataclass(frozen=True, eq=False)
class Elements(Region):
    """Elements that pointers point to: `tensor` is all of the storage as one dimension."""

    offsets: Tensor
    """int64: their numbers in the storage, any of them more than once."""

    @cached_property
    def consecutive(self) -> slice | None:
        """Where they are if each is the next one of the storage: a part of it is had without a copy."""
        count = self.offsets.numel()
        if count == 0:
            return None
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        if first < 0 or last - first != count - 1:
            return None
        return slice(first, last + 1) if torch.equal(self.offsets, first + _numbers(count)) else None

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The lowest of the numbers, and the highest."""
        if self.consecutive is not None:
            return self.consecutive.start, self.consecutive.stop - 1
        lowest, highest = self.offsets.aminmax()
        return int(lowest), int(highest)

    @cached_property
    def key(self) -> Hashable:
        """See `Region`."""
        lowest, highest = self.bounds
        if self.consecutive is None:
            total = int(self.offsets.sum())
        else:
            total = (lowest + highest) * (highest - lowest + 1) // 2
        return self.storage, self.offsets.shape, lowest, highest, total

    @cached_property
    def empty(self) -> bool:
        """See `Region`."""
        return self.offsets.numel() == 0

    @property
    def ascending(self) -> bool:
        """Return whether each of the numbers is larger than the one before."""
        return self.consecutive is not None or bool((self.offsets[1:] > self.offsets[:-1]).all())

    def values(self) -> Tensor:
        """See `Region`."""
        return self.look(self.tensor)

    def look(self, marks: Tensor) -> Tensor:
        """See `Region`."""
        return marks[self.offsets if self.consecutive is None else self.consecutive]

    def mark(self, marks: Tensor, values: Tensor | int) -> None:
        """See `Region`."""
        marks[self.offsets if self.consecutive is None else self.consecutive] = values

    def copied(self) -> Tensor:
        """Return what is there now."""
        found = self.values()
        return found if self.consecutive is None else found.clone()


@lru_cache(maxsize=8)
def _numbers(count: int) -> Tensor:
    """Return the numbers from 0 on; they are only to be read."""
    return torch.arange(count, dtype=torch.int64)


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Return which elements of two tensors of one type and shape differ in a bit."""
    first, second = (tensor.contiguous().view(torch.uint8) for tensor in (a, b))
    return (first != second).reshape(*a.shape, a.element_size()).any(-1)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of one type and shape are the same, NaN included."""
    first, second = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (a, b))
    return torch.equal(first, second)
