"""Tensors of a problem, and calls of torch and of generated modules with them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.grouped.problems import ELEMENT_BYTES, Problem

Call = Callable[[], object]
L2_BYTES = 50 * 2**20
"""L2 of an H100 and of an H200."""
UNCACHED_BYTES = 3 * L2_BYTES
"""Bytes of the matrices B that successive calls read before the first one is read again."""
MOST_INPUTS = 10
"""Inputs that calls read one after the other."""
LARGEST_ERROR = 4e-3
"""Norm of the difference from torch's result, relative to its norm: both are rounded to bf16."""
ROWS_BEHIND = 3
"""Rows of D behind the last group, which a kernel must leave as they are."""
CHUNK_ROWS = 8192
"""Rows that are compared at a time, as fp32."""


def rows_of_groups(problem: Problem, skew: float) -> Tensor:
    """Return the rows of each group, int64 [groups] on the CPU, drawn with seed 0."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.softmax(skew * torch.randn(problem.groups, generator=generator), 0)
    drawn = torch.multinomial(shares, problem.rows, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=problem.groups)


def inputs_beyond_l2(problem: Problem, active: int) -> int:
    """Return the number of inputs that are needed to read B from memory, and not from L2."""
    one = active * problem.n * problem.k * ELEMENT_BYTES
    return max(1, min(MOST_INPUTS, math.ceil(UNCACHED_BYTES / one)))


@dataclass(frozen=True)
class Workload:
    """The inputs of successive calls: A, B and the division of rows of each, and a D for all of them."""

    problem: Problem
    active: int
    """Groups that have rows."""
    a: Sequence[Tensor]
    b: Sequence[Tensor]
    offs: Sequence[Tensor | None]
    out: Tensor

    @classmethod
    def routed(cls, problem: Problem, weight: Tensor, skew: float) -> Workload:
        """Return the calls of a layer with weights [G, N, K].

        Successive calls have the same numbers of rows for other experts, and read other weights if only some
        experts have rows.
        """
        rows = rows_of_groups(problem, skew)
        active = int((rows > 0).sum())
        count = min(problem.groups, inputs_beyond_l2(problem, active))
        device, step = weight.device, problem.groups // count
        offs = [rows.roll(i * step).cumsum(0).to(device, torch.int32) for i in range(count)]
        a = _normal(problem.rows, problem.k, device=device)
        out = torch.empty(problem.rows, problem.n, device=device, dtype=torch.bfloat16)
        return cls(problem, active, [a] * count, [weight.mT] * count, offs, out)

    @classmethod
    def batched(cls, problem: Problem, device: torch.device) -> Workload:
        """Return the calls of a batched matmul, each with an A and a B of its own."""
        groups, rows, n, k = problem.groups, problem.rows, problem.n, problem.k
        count = inputs_beyond_l2(problem, groups)
        a = [_normal(groups, rows, k, device=device) for _ in range(count)]
        b = [_normal(groups, n, k, device=device).mT for _ in range(count)]
        out = torch.empty(groups, rows, n, device=device, dtype=torch.bfloat16)
        return cls(problem, groups, a, b, [None] * count, out)

    def torch_calls(self) -> list[Call]:
        """Return the calls of torch that compute D."""
        any_torch: Any = torch
        if self.problem.kind == "batched":
            return [functools.partial(torch.bmm, a, b, out=self.out) for a, b in self._pairs]
        return [
            functools.partial(any_torch._grouped_mm, a, b, offs=offs, out_dtype=torch.bfloat16)
            for (a, b), offs in zip(self._pairs, self.offs, strict=True)
        ]

    def calls(self, module: ModuleType) -> list[Call]:
        """Return the calls of a module that compute D."""
        return [
            functools.partial(module.matmul, a, b, **({} if offs is None else {"offs": offs}), out=self.out)
            for (a, b), offs in zip(self._pairs, self.offs, strict=True)
        ]

    def dense_calls(self, module: ModuleType) -> list[Call]:
        """Return the calls of a dense module with the same rows of A and the B of one group."""
        return [functools.partial(module.matmul, a, b[0], out=self.out) for a, b in self._pairs]

    def is_right(self, module: ModuleType, expected: Tensor) -> bool:
        """Return True if a module computes the D of the first call, and changes no row behind it."""
        rows, n = expected.shape[:-1].numel(), expected.shape[-1]
        memory = torch.full((rows + ROWS_BEHIND, n), math.nan, device=expected.device, dtype=expected.dtype)
        d, offs = memory[:rows].view(expected.shape), self.offs[0]
        module.matmul(self.a[0], self.b[0], **({} if offs is None else {"offs": offs}), out=d)
        return relative_error(memory[:rows], expected.flatten(0, -2)) <= LARGEST_ERROR and bool(
            memory[rows:].isnan().all()
        )

    @property
    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.a, self.b, strict=True))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference of two matrices relative to the norm of the expected one."""
    difference, size = 0.0, 0.0
    for first in range(0, len(expected), CHUNK_ROWS):
        mine, theirs = (each[first : first + CHUNK_ROWS].float() for each in (found, expected))
        difference += float((mine - theirs).square().sum())
        size += float(theirs.square().sum())
    return math.sqrt(difference / size) if size else math.inf


def _normal(*shape: int, device: torch.device) -> Tensor:
    return torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(std=shape[-1] ** -0.5)
