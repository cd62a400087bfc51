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

from gemmgen.simulate import Result, run
from gemmgen.target import BLACKWELL

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
) -> tuple[Result, Tensor, Tensor]:
    """Return what was found, D as computed and D as it should be; small numbers make both exact."""
    m, n, k = shape
    a_format, b_format, block = FORMATS[kind]
    generator = torch.Generator().manual_seed(seed)
    (a, a_values), (b, b_values) = (
        _operand(rows, k, format_, generator) for rows, format_ in ((m, a_format), (n, b_format))
    )
    (a_scale, a_powers), (b_scale, b_powers) = (_scales(rows, k, block, generator) for rows in (m, n))
    d = torch.full((m, n), float("nan"), dtype=torch.float32)
    mixed = "e2m1" in (a_format, b_format) and a_format != b_format
    boxes = [[rows, 64 if f == "e2m1" else 128] for rows, f in ((256, a_format), (128, b_format))]
    columns = 128 // block // 4
    arguments = (
        descriptor(a, boxes[0], DTYPES[a_format][1], [[1, 0]], padded=mixed and a_format == "e2m1"),
        descriptor(b, boxes[1], DTYPES[b_format][1], [[1, 0]], padded=mixed and b_format == "e2m1"),
        _scale_descriptor(a_scale, [1, 2, columns, 2, 256], [[0, 1, 0, 0, 0]]),
        _scale_descriptor(b_scale, [1, 1, columns, 2, 256], [[0, 0, 0, 0, 0]]),
        descriptor(d, [256, 32], gl.float32, [[1, 0]]),
        k // 128,
        a_format,
        b_format,
    )
    tiles = -(-m // 256) * -(-n // 128)
    result = run(
        module.scaled_kernel,
        (tiles,),
        arguments,
        target=BLACKWELL,
        num_ctas=2,
        schedules=schedules,
        seed=seed,
    )
    left, right = (
        values * powers.repeat_interleave(block, 1)
        for values, powers in ((a_values, a_powers), (b_values, b_powers))
    )
    return result, d, left @ right.T


def _operand(rows: int, k: int, format_: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return an operand as stored, and its values."""
    if format_ == "e2m1":
        codes = torch.randint(0, 16, (rows, k), generator=generator)
        return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), E2M1[codes]
    values = torch.randint(-3, 4, (rows, k), generator=generator).float()
    return values.to(DTYPES[format_][0]), values


def _scales(rows: int, k: int, block: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return scales as TMA reads them, and their values: [rows, K / block]."""
    exponents = torch.randint(-2, 3, (rows, k // block), generator=generator)
    values = torch.exp2(exponents.float())
    stored = (exponents + 127).to(torch.uint8) if block == 32 else values.to(torch.float8_e4m3fn)
    blocks = stored.reshape(rows // 128, 4, 32, k // block // 4, 4).permute(0, 3, 2, 1, 4)
    return blocks.contiguous().reshape(1, rows // 128, k // block // 4, 2, 256), values


def _scale_descriptor(scales: Tensor, box: list[int], bases: Bases) -> Any:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=5, cga_layout=bases)
    return TensorDescriptor.from_tensor(scales, box, layout)
