"""Launches of generated modules in the simulator, shared by its tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gluonsim import Result, run

FIXED = ("lazy", "eager", "lifo")


def launch(
    module: ModuleType,
    shape: tuple[int, int, int],
    *,
    programs: int = 1,
    schedules: Sequence[str] = FIXED,
    seed: int = 0,
) -> tuple[Result, Tensor, Tensor]:
    """Return what was found, D as computed and D as it should be; small integers make both exact."""
    from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
        TensorDescriptor,
    )

    m, n, k = shape
    generator = torch.Generator().manual_seed(seed)
    table: list[Mapping[str, Any]] = list(module.ARGUMENTS.values())
    dtypes: list[torch.dtype] = [row["dtype"] for row in table]
    a = torch.randint(-3, 4, (m, k), generator=generator).to(dtypes[0])
    b = torch.randint(-3, 4, (n, k), generator=generator).to(dtypes[1])
    d = torch.full((m, n), float("nan"), dtype=dtypes[2])
    descriptors = [
        TensorDescriptor.from_tensor(tensor, **block)
        for tensor, block in zip((a, b, d), module.TMA.values(), strict=True)
    ]
    options: dict[str, Any] = {**module.LAUNCH_OPTIONS}
    tile = int(module.PROGRAM_TILE_M.value)
    of_two_tiles = d[max(0, m - tile) : (-(-m // tile) - 1) * tile]  # the last tile ends with D
    options |= {"schedules": schedules, "seed": seed, "recomputed": [of_two_tiles]}
    result = run(module.matmul_kernel, (programs,), descriptors, **options)
    return result, d, (a.float() @ b.float().T).to(dtypes[2])


def lines_of(path: Path, snippet: str) -> set[int]:
    """Return the 1-based lines of a file that hold a snippet."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = {number for number, line in enumerate(lines, 1) if snippet in line}
    assert found, f"{path.name} has no line with {snippet!r}"
    return found


def changed_kernels(kernels: Path, path: Path, *changes: tuple[str, str]) -> ModuleType:
    """Return the kernels of a file with some changes, as a module at another path."""
    text = kernels.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{text.count(old)} times {old!r}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(text, path, "exec"), module.__dict__)
    return module


def integers(*shape: int) -> Tensor:
    """Return small integers, the same in each call."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1), dtype=torch.int32)
