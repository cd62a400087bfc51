"""A GPU that there is not: CPU tensors that claim to be on one, for wrappers that launch nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor


class Cuda(Tensor):
    """A CPU tensor whose device reads as the first GPU."""

    device = property(lambda self: torch.device("cuda", 0))  # pyright: ignore[reportAssignmentType]
    is_cuda = True  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]


class SecondCuda(Cuda):
    """The same, of the second GPU."""

    device = property(lambda self: torch.device("cuda", 1))  # pyright: ignore[reportAssignmentType]


def on_a_fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let wrappers allocate on a GPU that there is not, and take the first one for the current one.

    What `torch.empty` returns there is NaN all over, so that an element that nobody wrote is seen.
    """

    def allocating(allocate: Any) -> Any:
        def allocated(*shape: Any, device: Any = None, **keywords: Any) -> Tensor:
            if device is None or torch.device(device).type != "cuda":
                return allocate(*shape, device=device, **keywords)
            made = allocate(*shape, **keywords)
            if allocate is empty and made.is_floating_point():
                made.fill_(float("nan"))
            return made.as_subclass((Cuda, SecondCuda)[torch.device(device).index or 0])

        return allocated

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", allocating(torch.empty))
    monkeypatch.setattr(torch, "zeros", allocating(torch.zeros))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
