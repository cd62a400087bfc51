"""Launches of the Blackwell kernels in the simulator, shared by its tests."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor,
)

from gemmgen.hardware import BLACKWELL
from gluonsim import Result, run

gl = cast(Any, gl_)
Bases = list[list[int]]

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""OCP Microscaling Formats 1.0, table 5."""
DTYPES: dict[str, tuple[torch.dtype, Any]] = {
    "bf16": (torch.bfloat16, gl.bfloat16),
    "fp16": (torch.float16, gl.float16),
    "fp32": (torch.float32, gl.float32),
    "e4m3": (torch.float8_e4m3fn, gl.float8e4nv),
    "e5m2": (torch.float8_e5m2, gl.float8e5),
    "e2m1": (torch.uint8, gl.uint8),
}


def descriptor(tensor: Tensor, box: list[int], dtype: Any, bases: Bases, *, padded: bool = False) -> Any:
    layout = gl.NVMMASharedLayout.get_default_for(box, dtype, cga_layout=bases, fp4_padded=padded)
    return TensorDescriptor.from_tensor(tensor, box, layout)


def dense(
    module: ModuleType,
    shape: tuple[int, int, int],
    *,
    dtype: str = "bf16",
    ctas: int = 1,
    programs: int = 1,
    schedules: Sequence[str],
    seed: int = 0,
    max_idle_operations: int | None = None,
) -> tuple[Result, Tensor, Tensor]:
    """Return what was found, D as computed and D as it should be; small integers make both exact."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(seed)
    torch_dtype, gl_dtype = DTYPES[dtype]
    a, b = (torch.randint(-3, 4, (rows, k), generator=generator).to(torch_dtype) for rows in (m, n))
    d = torch.full((m, n), float("nan"), dtype=torch.float32)
    depth = 128 // torch_dtype.itemsize
    split: Bases = [[1, 0]] if ctas == 2 else []
    whole: Bases = [[0, 0]] if ctas == 2 else []
    arguments = (
        descriptor(a, [128 * ctas, depth], gl_dtype, split),
        descriptor(b, [64, depth], gl_dtype, whole),
        descriptor(d, [128 * ctas, 32], gl.float32, split),
        split,
    )
    result = run(
        module.dense_kernel,
        (programs,),
        arguments,
        target=BLACKWELL,
        num_ctas=ctas,
        schedules=schedules,
        seed=seed,
        max_idle_operations=max_idle_operations,
    )
    return result, d, a.float() @ b.float().T


def paired(
    module: ModuleType,
    rows: int,
    bases: Bases,
    *,
    accumulator: str = "fp32",
    schedules: Sequence[str],
    seed: int = 0,
) -> tuple[Result, Tensor, Tensor]:
    """As `dense`, for tiles of so many rows and 64 columns in each CTA; `bases` are those of D."""
    generator = torch.Generator().manual_seed(seed)
    ctas_m, ctas_n = (1 << sum(basis[dim] > 0 for basis in bases) for dim in (0, 1))
    tile_m, tile_n = rows * ctas_m, 64 * ctas_n
    # At most 9 * 192 in magnitude, which fp16 holds.
    m, n, k = 2 * tile_m - 24, 2 * tile_n - 16, 192
    a, b = (torch.randint(-3, 4, (extent, k), generator=generator).half() for extent in (m, n))
    d = torch.full((m, n), float("nan"), dtype=torch.float32)
    # A pair divides the columns of B between its CTAs, each of which has those of D whole.
    later = bases[1:]
    a_bases = bases[:1] + [[m_, 0] for m_, _ in later]
    b_bases = [[1, 0] for _ in bases[:1]] + [[2 * n_, 0] for _, n_ in later]
    arguments = (
        descriptor(a, [tile_m, 64], gl.float16, a_bases),
        descriptor(b, [tile_n, 64], gl.float16, b_bases),
        descriptor(d, [tile_m, tile_n], gl.float32, bases),
        [rows, 64],
        bases,
        DTYPES[accumulator][1],
    )
    result = run(
        module.pairs_kernel,
        (2, 2),
        arguments,
        target=BLACKWELL,
        num_ctas=1 << len(bases),
        schedules=schedules,
        seed=seed,
    )
    return result, d, a.float() @ b.float().T


FORMATS = {
    "mxfp8": ("e4m3", "e4m3", 32),
    "mxfp8_e5m2": ("e4m3", "e5m2", 32),
    "mxfp4": ("e2m1", "e2m1", 32),
    "nvfp4": ("e2m1", "e2m1", 16),
    "mxfp8_by_mxfp4": ("e4m3", "e2m1", 32),
    "mxfp4_by_mxfp8": ("e2m1", "e5m2", 32),
}


def scaled(
    module: ModuleType,
    shape: tuple[int, int, int],
    *,
    kind: str = "mxfp8",
    schedules: Sequence[str],
    seed: int = 0,
    max_idle_operations: int | None = None,
) -> tuple[Result, Tensor, Tensor]:
    """Return what was found, D as computed and D as it should be; small numbers make both exact."""
    m, n, _ = shape
    d = torch.full((m, n), float("nan"), dtype=torch.float32)
    arguments, expected = _scaled_arguments(shape, kind, d, torch.Generator().manual_seed(seed))
    result = run(
        module.scaled_kernel,
        (-(-m // 256) * -(-n // 128),),
        arguments,
        target=BLACKWELL,
        num_ctas=2,
        schedules=schedules,
        seed=seed,
        max_idle_operations=max_idle_operations,
    )
    return result, d, expected


def _scaled_arguments(
    shape: tuple[int, int, int], kind: str, d: Tensor, generator: torch.Generator
) -> tuple[Sequence[Any], Tensor]:
    """Return a launch's arguments, and D as it should be."""
    m, n, k = shape
    a_format, b_format, block = FORMATS[kind]
    (a, a_values), (b, b_values) = (
        operand(rows, k, format_, generator) for rows, format_ in ((m, a_format), (n, b_format))
    )
    (a_scale, a_powers), (b_scale, b_powers) = (scales(rows, k, block, generator) for rows in (m, n))
    mixed = "e2m1" in (a_format, b_format) and a_format != b_format
    boxes = [[rows, 64 if f == "e2m1" else 128] for rows, f in ((256, a_format), (128, b_format))]
    columns = 128 // block // 4
    arguments = (
        descriptor(a, boxes[0], DTYPES[a_format][1], [[1, 0]], padded=mixed and a_format == "e2m1"),
        descriptor(b, boxes[1], DTYPES[b_format][1], [[1, 0]], padded=mixed and b_format == "e2m1"),
        scale_descriptor(a_scale, [1, 2, columns, 2, 256], [[0, 1, 0, 0, 0]]),
        scale_descriptor(b_scale, [1, 1, columns, 2, 256], [[0, 0, 0, 0, 0]]),
        descriptor(d, [256, 32], gl.float32, [[1, 0]]),
        k // 128,
        a_format,
        b_format,
    )
    left, right = (
        values * powers.repeat_interleave(block, 1)
        for values, powers in ((a_values, a_powers), (b_values, b_powers))
    )
    return arguments, left @ right.T


def operand(rows: int, k: int, format_: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return an operand as stored, and its values."""
    if format_ == "e2m1":
        codes = torch.randint(0, 16, (rows, k), generator=generator)
        return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes]
    values = torch.randint(-3, 4, (rows, k), generator=generator).float()
    return values.to(DTYPES[format_][0]), values


def scales(rows: int, k: int, block: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return scales as stored, and their values: [rows, K / block]."""
    exponents = torch.randint(-2, 3, (rows, k // block), generator=generator)
    values = torch.exp2(exponents.float())
    return (exponents + 127).to(torch.uint8) if block == 32 else values.to(torch.float8_e4m3fn), values


def scale_descriptor(stored: Tensor, box: list[int], bases: Bases) -> Any:
    """Return a descriptor over scales in the blocks that the tensor core copies: 128 rows by 4 columns."""
    rows, columns = stored.shape
    blocks = stored.reshape(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4)
    blocks = blocks.contiguous().reshape(1, rows // 128, columns // 4, 2, 256)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=5, cga_layout=bases)
    return TensorDescriptor.from_tensor(blocks, box, layout)
