"""Tensors of a launch that are computed once for all of its programs and schedules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from torch import Tensor

from gluonsim.ir.parse import Operation


class Known:
    """Tensors of a launch that are computed once: its programs and schedules multiply the same tiles again.

    A tensor is known by what stands for its numbers: the operation that makes it, and what stands for those
    of its operands. Where nothing does, because a race made them what no other schedule sees, or because
    memory is full, it is computed each time; so every schedule has the numbers that it would have by itself.
    """

    max_bytes: ClassVar[int] = 256 << 20
    """Of the tensors that are kept: launches that wrap every ring have a tenth of it."""

    def __init__(self, *, keeps: bool = True) -> None:
        self._room = self.max_bytes if keeps else 0
        """Bytes that more tensors may take."""
        self._tensors: dict[Hashable, Tensor] = {}
        self._numbers: dict[int, Hashable] = {}
        """What stands for a tensor, by its id: all of them are kept, so no other gets one of these."""

    def numbers(self, tensor: Tensor) -> Hashable | None:
        """Return what stands for the numbers of a tensor; None if nothing does."""
        return self._numbers.get(id(tensor))

    def tensor(
        self,
        op: Operation,
        operands: Sequence[Hashable | None],
        compute: Callable[[], Tensor],
        *,
        changes: bool = False,
    ) -> Tensor:
        """Return what an operation makes of operands, given what stands for them; nobody may change it.

        If it `changes` later, because it is a part of memory, a copy of it is kept.
        """
        if None in operands:
            return compute()
        key = (op, *operands)
        found = self._tensors.get(key)
        if found is None:
            found = compute()
            if found.nbytes <= self._room:
                self._room -= found.nbytes
                found = found.clone() if changes else found
                self._tensors[key] = found
                self._numbers[id(found)] = object()
        return found
