"""Calls of ``torch.nn.functional.grouped_mm``: which both it and a module take, or one of them alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

import torch
from simulated import on_a_gpu, signs
from torch import Tensor
from torch.nn import functional

grouped_mm: Callable[..., Tensor] = getattr(functional, "grouped_mm", None) or cast(Any, torch)._grouped_mm
"""Torch's function; releases before the public one have the private one alone."""
INT = torch.int32


@dataclass(frozen=True)
class Call:
    """The operands of a grouped matmul: A [M, K] or [G, M, K], B [G, K, N], and the end of each group."""

    a: Tensor
    b: Tensor
    offs: Tensor | None = None

    @classmethod
    def of(cls, ends: list[int] | int, *, m: int = 40, n: int = 32, k: int = 64, device: str = "cpu") -> Call:
        """Return random operands: of groups with these ends, or of a number of groups of `m` rows each."""
        if isinstance(ends, int):
            return cls(signs(ends, m, k, device=device), signs(ends, n, k, device=device).mT)
        offs = torch.tensor(ends, dtype=INT, device=device)
        return cls(signs(m, k, device=device), signs(len(ends), n, k, device=device).mT, offs)

    def ours(self, module: ModuleType, **options: Any) -> Tensor:
        """Return the D of a module."""
        extras = options if self.offs is None else {"offs": on_a_gpu(self.offs), **options}
        return module.matmul(on_a_gpu(self.a), on_a_gpu(self.b), **extras).as_subclass(Tensor)

    def torchs(self, **options: Any) -> Tensor:
        """Return the D of torch."""
        return grouped_mm(self.a, self.b, **({} if self.offs is None else {"offs": self.offs}), **options)

    @property
    def rows(self) -> int:
        """The rows of D that are of a group; with three dimensions, the rows of each group."""
        return self.a.shape[-2] if self.offs is None else max(map(int, self.offs), default=0)

    def assert_equal(self, module: ModuleType, shape: tuple[int, ...]) -> None:
        """Compare shape, type, strides unless D has no element, and each row that is of a group."""
        ours, theirs = self.ours(module), self.torchs()
        assert ours.shape == theirs.shape == shape
        assert ours.dtype == theirs.dtype == self.a.dtype
        assert ours.stride() == theirs.stride() or not ours.numel()
        assert torch.equal(ours[..., : self.rows, :], theirs[..., : self.rows, :])


ENDS: dict[str, list[int]] = {
    "each group has rows": [3, 11, 12, 30, 40],
    "groups without rows are first, between others, and last": [0, 0, 17, 17, 40, 40],
    "one group has all rows": [0, 0, 40, 40, 40],
    "no group has a row": [0, 0, 0, 0, 0],
    "there is one group": [40],
    "rows after the last end are of no group": [3, 3, 10, 20, 30],
    "there are 32 groups of about one row": [*range(31), 40],
}
"""Ends of groups among 40 rows, which both take."""

LAYOUTS: dict[str, Callable[[Call], Call]] = {
    "rows of A lie apart": lambda call: Call(torch.cat([call.a] * 2, 1)[:, :64], call.b, call.offs),
    "rows of B lie apart": lambda call: Call(call.a, signs(5, 32, 80)[:, :, :64].mT, call.offs),
    "A begins at a multiple of 16 bytes": lambda call: Call(signs(40, 80)[:, 8:72], call.b, call.offs),
    "A begins after some rows": lambda call: Call(signs(44, 64)[4:], call.b, call.offs),
    "B begins after a group": lambda call: Call(call.a, signs(6, 32, 64)[1:].mT, call.offs),
    "offs begin at any element": lambda call: Call(
        call.a, call.b, torch.tensor([9, 3, 3, 10, 20, 30], dtype=INT)[1:]
    ),
}
"""Changes to the layout of a call, which both take."""


def changed(**tensors: Tensor) -> Call:
    """Return a call with other tensors than the ones that both take."""
    return replace(Call.of([3, 3, 10, 20, 30]), **tensors)


REFUSED: dict[str, tuple[Call, str, str, str]] = {
    "offs of int64": (
        changed(offs=torch.tensor([3, 3, 10, 20, 30])),
        "Offsets have to be int32",
        "offs",
        "torch.int64",
    ),
    "offs of two dimensions": (
        changed(offs=torch.tensor([[3, 3, 10, 20, 30]], dtype=INT)),
        "offs has to be 1D",
        "offs",
        "shape [1, 5]",
    ),
    "offs of other groups": (
        changed(offs=torch.tensor([3, 3, 10, 20], dtype=INT)),
        "matrix batch sizes have to match",
        "offs",
        "[4]",
    ),
    "a B of another K": (
        changed(b=signs(5, 32, 72).mT),
        "contraction dimension of mat_a and mat_b must match",
        "b",
        "[5, 72, 32]",
    ),
    "a row of A": (changed(a=signs(64)), "mat_a has to be 2 or 3d", "a", "shape [64]"),
    "rows of A that are no multiple of 16 bytes": (
        changed(a=signs(40, 60), b=signs(5, 32, 60).mT),
        "strides should be multiple of 16 bytes",
        "a",
        "60",
    ),
    "rows of B that are no multiple of 16 bytes": (
        changed(b=signs(5, 32, 68)[:, :, :64].mT),
        "strides should be multiple of 16 bytes",
        "b",
        "68",
    ),
    "operands of two types": (
        changed(b=signs(5, 32, 64).half().mT),
        "expected m1 and m2 to have the same dtype",
        "b",
        "torch.float16",
    ),
    "operands of float64": (
        changed(a=signs(40, 64).double(), b=signs(5, 32, 64).double().mT),
        "Expected mat_a to be Float32, BFloat16 or Float16 matrix",
        "a",
        "torch.float64",
    ),
}
"""Calls that both refuse: the beginning of torch's error, what a module names, and what it found."""

TORCHS: dict[str, tuple[Call, str, str]] = {
    "A of columns": (changed(a=signs(64, 40).T), "a", "strides (1, 40)"),
    "B of columns": (changed(b=signs(5, 64, 8)), "b", "strides (512, 8, 1)"),
    "A past a multiple of 16 bytes, which torch refuses on a GPU": (
        changed(a=signs(40, 72)[:, 1:65]),
        "a",
        "2",
    ),
    "gaps between the groups of B": (changed(b=signs(5, 40, 64)[:, :32].mT), "b", "2560"),
    "one B for all groups": (changed(b=signs(1, 32, 64).expand(5, -1, -1).mT), "b", "0"),
    "float16": (changed(a=signs(40, 64).half(), b=signs(5, 32, 64).half().mT), "a", "torch.float16"),
    "float32": (changed(a=signs(40, 64).float(), b=signs(5, 32, 64).float().mT), "a", "torch.float32"),
    "a 3-D A and a 2-D B, whose columns offs divide": (
        changed(a=signs(5, 8, 64), b=signs(40, 64).T),
        "b",
        "shape [64, 40]",
    ),
    "two 2-D operands, whose K offs divide": (
        changed(a=signs(40, 64).T, b=signs(40, 32)),
        "a",
        "strides (1, 64)",
    ),
    "more groups than the module has slots for": (Call.of([*range(1, 33), 40]), "this kernel", "33"),
    "no groups": (Call(signs(0, 64), signs(0, 32, 64).mT, torch.zeros(0, dtype=INT)), "this kernel", "0"),
    "an A that requires grad": (changed(a=signs(40, 64).requires_grad_()), "a", "grad"),
    "a B that requires grad": (changed(b=signs(5, 32, 64).requires_grad_().mT), "b", "grad"),
}
"""Calls that torch alone takes, with the argument that a module names, and what it found."""
