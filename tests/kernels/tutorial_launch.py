"""Launches of the tutorials' kernels, in the simulator and, of Hopper's, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon.language.nvidia.blackwell import (  # pyright: ignore[reportMissingTypeStubs]
    TensorMemoryLayout,
)

from gemmgen.hardware import BLACKWELL, HOPPER, Architecture
from gluonsim import Result, run
from kernels.blackwell_launch import (
    DTYPES,
    FORMATS,
    Bases,
    descriptor,
    gl,
    operand,
    scale_descriptor,
    scales,
)

HOPPER_TILE = (64, 64, 64)
"""M, N and K of what one program multiplies at a time."""
BLACKWELL_TILE = (128, 64, 64)
SCALED_TILE = (128, 128, 128)
GL_DTYPES: dict[torch.dtype, Any] = {
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float32: gl.float32,
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.int8: gl.int8,
    torch.int32: gl.int32,
}


@dataclass(frozen=True)
class Launch:
    """One launch over tensors of small integers, and the D that it must leave."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    d: Tensor
    expected: Tensor
    target: Architecture = HOPPER
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def simulate(self, schedules: Sequence[str], seed: int = 0) -> Result:
        return run(
            self.kernel,
            self.grid,
            self.arguments,
            target=self.target,
            schedules=schedules,
            seed=seed,
            **self.options,
        )

    def on_gpu(self) -> None:
        self.kernel[self.grid](*self.arguments, **self.options)
        torch.cuda.synchronize()


def integers(rows: int, columns: int, seed: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return numbers from -3 to 3 in storage whose rows are multiples of 16 bytes, as TMA needs."""
    aligned = ceil(columns * dtype.itemsize / 16) * 16 // dtype.itemsize
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-3, 4, (rows, aligned), generator=generator).to(dtype)
    return numbers.to(device)[:, :columns]


def box(tensor: Tensor, shape: Sequence[int]) -> Any:
    return descriptor(tensor, list(shape), GL_DTYPES[tensor.dtype], [])


def single_tile(
    kernel: Any,
    tile: tuple[int, int, int],
    a_elsewhere: bool,
    dtype: torch.dtype = torch.float16,
    target: Architecture = HOPPER,
    device: str = "cpu",
) -> Launch:
    """Return D = A @ B.T + C of one tile."""
    m, n, k = tile
    a, b = integers(m, k, 1, dtype, device), integers(n, k, 2, dtype, device)
    wide = torch.int32 if dtype == torch.int8 else torch.float32
    c = integers(m, n, 3, wide, device)
    d = torch.zeros_like(c)
    arguments = (box(a, (m, k)), box(b, (n, k)), box(c, (m, n)), box(d, (m, n)), a_elsewhere)
    expected = (a.double() @ b.double().T + c.double()).to(wide)
    return Launch(kernel, (1,), arguments, d, expected, target)


def blocked(kernel: Any, shape: tuple[int, int, int], device: str) -> Launch:
    """Return D = A @ B of fp16, with B [K, N], by a program for each tile."""
    (m, n, k), (tile_m, tile_n, tile_k) = shape, HOPPER_TILE
    a, b = integers(m, k, 1, torch.float16, device), integers(k, n, 2, torch.float16, device)
    d = integers(m, n, 0, torch.float16, device).fill_(float("nan"))
    steps = ceil(k / tile_k)
    arguments = (box(a, (tile_m, tile_k)), box(b, (tile_k, tile_n)), box(d, (tile_m, tile_n)), steps)
    grid = (ceil(m / tile_m), ceil(n / tile_n), 1)
    return Launch(kernel, grid, arguments, d, (a.float() @ b.float()).half(), HOPPER)


def tiled(
    kernel: Any,
    shape: tuple[int, int, int],
    tile: tuple[int, int, int],
    *more: Any,
    programs: int | None = None,
    target: Architecture = HOPPER,
    d_columns: int | None = None,
    device: str = "cpu",
) -> Launch:
    """Return D = A @ B.T of fp16 by so many programs, or by one for each tile along two axes."""
    (m, n, k), (tile_m, tile_n, tile_k) = shape, tile
    a, b = (integers(rows, k, rows, torch.float16, device) for rows in (m, n))
    d = integers(m, n, 0, torch.float32, device).fill_(float("nan"))
    d_box = box(d, (tile_m, d_columns or tile_n))
    arguments = (box(a, (tile_m, tile_k)), box(b, (tile_n, tile_k)), d_box, *more)
    grid = (ceil(m / tile_m), ceil(n / tile_n)) if programs is None else (programs,)
    return Launch(kernel, grid, arguments, d, a.float() @ b.float().T, target)


def launch_controlled(kernel: Any, shape: tuple[int, int, int], bases: Bases) -> Launch:
    """Return D = A @ B.T by clusters; each base says how a bit of a CTA's number divides the tile of D.

    [1, 0] comes first and makes pairs, which divide B's rows too; [2, 0] adds rows of D and shares B, [0, 1]
    adds columns and shares A.
    """
    m, n, k = shape
    ctas = 1 << len(bases)
    rows_of_tiles = 1 << sum(base[0] > 0 for base in bases)
    tile_m, tile_n, tile_k = 128 * rows_of_tiles, 64 * ctas // rows_of_tiles, 64
    a, b = (integers(size, k, size, torch.float16, "cpu") for size in (m, n))
    d = integers(m, n, 0, torch.float32, "cpu").fill_(float("nan"))
    columns_together = any(base[1] for base in bases)  # a part of them is not one of each CTA
    arguments = (
        descriptor(a, [tile_m, tile_k], gl.float16, [[base[0], 0] for base in bases]),
        descriptor(b, [tile_n, tile_k], gl.float16, [[max(base[0] & 1, 2 * base[1]), 0] for base in bases]),
        descriptor(d, [tile_m, tile_n if columns_together else tile_n // 2], gl.float32, bases),
        TensorMemoryLayout((128, 64), col_stride=1, cga_layout=bases, two_ctas=ctas > 1),
    )
    grid = (ceil(m / tile_m) * ceil(n / tile_n),)
    return Launch(kernel, grid, arguments, d, a.float() @ b.float().T, BLACKWELL, {"num_ctas": ctas})


def scaled(kernel: Any, shape: tuple[int, int, int], kind: str, *, by_copy: bool) -> Launch:
    """Return D = (A * scales) @ (B * scales).T of one CTA, the scales by TMA in blocks or row by row."""
    (m, n, k), (tile_m, tile_n, depth) = shape, SCALED_TILE
    a_format, b_format, block = FORMATS[kind]
    generator = torch.Generator().manual_seed(k)
    (a, a_values), (b, b_values) = (
        operand(rows, k, format_, generator) for rows, format_ in ((m, a_format), (n, b_format))
    )
    # TMA brings blocks of 128 rows: those beyond the operands' are there, and meet zeros.
    (a_scale, a_powers), (b_scale, b_powers) = (
        scales(ceil(rows / 128) * 128, k, block, generator) for rows in (m, n)
    )
    d = integers(m, n, 0, torch.float32, "cpu").fill_(float("nan"))
    mixed = "e2m1" in (a_format, b_format) and a_format != b_format
    operands = [
        descriptor(
            tensor,
            [rows, depth // 2 if format_ == "e2m1" else depth],
            DTYPES[format_][1],
            [],
            padded=mixed and format_ == "e2m1",
        )
        for tensor, rows, format_ in ((a, tile_m, a_format), (b, tile_n, b_format))
    ]
    d_box = descriptor(d, [tile_m, 32], gl.float32, [])
    columns = depth // block
    if by_copy:
        box = [1, 1, columns // 4, 2, 256]
        boxes = [scale_descriptor(stored, box, []) for stored in (a_scale, b_scale)]
        arguments = (*operands, *boxes, d_box, ceil(k / depth), a_format, b_format)
    else:
        arguments = (*operands, a_scale, b_scale, d_box, k // block, columns, a_format, b_format)
    left, right = (
        values * powers[: len(values)].repeat_interleave(block, 1)
        for values, powers in ((a_values, a_powers), (b_values, b_powers))
    )
    grid = (ceil(m / tile_m), ceil(n / tile_n))
    return Launch(kernel, grid, arguments, d, left @ right.T, BLACKWELL)
