"""What rows over which TMA cannot stride cost: copies of them by a module or by torch, or loads without TMA.

``python benchmarks/reading/misaligned.py RECORD MxNxK…`` times bf16 matmuls of contiguous A [M, K] and B
stored as [N, K] by turns: cuBLAS; the module that gemmgen's planner ranks first for the shape, with A and B
copied by itself or by torch in three ways, with only A copied, and with none; and kernels that load without
TMA. Every result is checked first. It writes RECORD: of each arm cuBLAS's time over its own (the median of
the pairs) and its median in seconds.
"""
# pyright: basic

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from read_only import BYTES, GRAPH_SECONDS, ROUNDS, chain, seconds
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from gemmgen.module import import_generated
from gemmgen.product import make, staged

UNIT = 8
"""Elements of bf16 in the 16 bytes whose multiples TMA takes as row strides."""
STEP_K = gl.constexpr(64)
GROUP_TILES_M = gl.constexpr(8)
ASYNC_TILES = ((128, 256, 4, 8), (128, 128, 4, 8), (128, 128, 3, 4), (64, 128, 4, 4))
"""Rows, columns, stages and warps of kernels that load by cp.async."""
PLAIN_TILES = ((128, 128, 2, 8), (64, 128, 2, 4))
"""Those of kernels that load through registers."""
TOLERANCE = 6e-3
"""Of the result's relative Frobenius error beside an fp32 reference: bf16 rounds to 2^-9."""
SPEC = """title: bf16 matmul of rows of any length
target: h200
operands: {{a: {{dtype: bf16}}, b: {{dtype: bf16}}, d: {{dtype: bf16}}, misaligned: copy}}
bench: {{shapes: [{shape}]}}
"""


# --- copies by torch


def padded(stored: Tensor) -> Tensor:
    """Return memory for rows of the same length that TMA can stride over."""
    columns = stored.shape[1]
    return stored.new_empty((stored.shape[0], -(-columns // UNIT) * UNIT))[:, :columns]


def words_of(stored: Tensor) -> torch.dtype:
    """Return the widest integer of which all rows of a contiguous matrix are made."""
    return getattr(torch, f"int{8 * math.gcd(8, stored.shape[1] * 2)}")


def by_elements(stored: Tensor) -> Tensor:
    """Copy by torch, element by element."""
    return padded(stored).copy_(stored)


def by_words(stored: Tensor) -> Tensor:
    """Copy by torch in the widest words."""
    copy, word = padded(stored), words_of(stored)
    copy.view(word).copy_(stored.view(word))
    return copy


def by_pad(stored: Tensor) -> Tensor:
    """Copy by the function of torch that pads."""
    columns = stored.shape[1]
    return torch.nn.functional.pad(stored, (0, -columns % UNIT))[:, :columns]


# --- loads without TMA


@gluon.jit
def origin(m, n, tile_m: gl.constexpr, tile_n: gl.constexpr):
    """First row and column of a program's tile, in groups of rows as the modules have them."""
    tiles_m, tiles_n = gl.cdiv(m, tile_m), gl.cdiv(n, tile_n)
    tile = gl.program_id(0)
    group = tile // (GROUP_TILES_M * tiles_n)
    rows = gl.minimum(tiles_m - group * GROUP_TILES_M, GROUP_TILES_M)
    in_group = tile % (GROUP_TILES_M * tiles_n)
    return (group * GROUP_TILES_M + in_group % rows) * tile_m, (in_group // rows) * tile_n


@gluon.jit
def place(pointer, first, extent, stride, rows: gl.constexpr, layout: gl.constexpr):
    """The addresses of a tile's first step, and which of its rows there are."""
    row = first + gl.arange(0, rows, gl.SliceLayout(1, layout))
    column = gl.arange(0, STEP_K, gl.SliceLayout(0, layout))
    return pointer + (row * stride)[:, None] + column[None, :], (row < extent)[:, None]


@gluon.jit
def inside_k(k, step, layout: gl.constexpr):
    """Which columns of a step there are."""
    return (step * STEP_K + gl.arange(0, STEP_K, gl.SliceLayout(0, layout)) < k)[None, :]


@gluon.jit
def store_tile(d_desc, row, column, accumulator):
    """Convert and store a tile by TMA: the rows of D are padded."""
    d_smem = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_shape, d_desc.layout)
    parts: gl.constexpr = accumulator.shape[1] // d_desc.block_shape[1]
    tile_m: gl.constexpr = accumulator.shape[0]
    width: gl.constexpr = d_desc.block_shape[1]
    tiles = (accumulator,)
    if parts == 2:
        tiles = accumulator.reshape((tile_m, 2, width)).permute((0, 2, 1)).split()
    for part in gl.static_range(parts):
        tma.store_wait(0)
        d_smem.store(tiles[part].to(d_desc.dtype))
        fence_async_shared()
        tma.async_store(d_desc, [row, column + part * width], d_smem)
    tma.store_wait(0)


@gluon.jit
def async_kernel(
    a_ptr,
    b_ptr,
    d_desc,
    m,
    n,
    k_vectors,
    a_stride_vectors,
    b_stride_vectors,
    vector: gl.constexpr,
    tile_m: gl.constexpr,
    tile_n: gl.constexpr,
    stages: gl.constexpr,
):
    """D = A @ B with loads by cp.async of so many elements; extents and strides are in vectors of them."""
    warps: gl.constexpr = gl.num_warps()
    layout: gl.constexpr = gl.BlockedLayout(
        [1, vector], [32 * vector // STEP_K, STEP_K // vector], [warps, 1], [1, 0]
    )
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[warps, 1], instr_shape=[16, tile_n, 16]
    )
    a_smem = gl.allocate_shared_memory(gl.bfloat16, [stages, tile_m, STEP_K], shared)
    b_smem = gl.allocate_shared_memory(gl.bfloat16, [stages, tile_n, STEP_K], shared)
    row, column = origin(m, n, tile_m, tile_n)
    k = k_vectors * vector
    steps = gl.cdiv(k, STEP_K)
    a_tile, a_rows = place(a_ptr, row, m, a_stride_vectors * vector, tile_m, layout)
    b_tile, b_rows = place(b_ptr, column, n, b_stride_vectors * vector, tile_n, layout)
    for step in gl.static_range(stages - 1):
        async_copy.async_load(a_smem.index(step), a_tile + step * STEP_K, a_rows & inside_k(k, step, layout))
        async_copy.async_load(b_smem.index(step), b_tile + step * STEP_K, b_rows & inside_k(k, step, layout))
        async_copy.commit_group()
    accumulator = gl.zeros((tile_m, tile_n), gl.float32, sums)
    for step in range(steps):
        async_copy.wait_group(stages - 2)
        # Each thread has waited for its own copies: make them visible to wgmma, then wait for all threads.
        fence_async_shared()
        gl.barrier()
        stage = step % stages
        accumulator = warpgroup_mma(
            a_smem.index(stage), b_smem.index(stage).permute((1, 0)), accumulator, is_async=True
        )
        # The MMA of the step before has retired, and with it the last read of the stage that is loaded next.
        accumulator = warpgroup_mma_wait(1, deps=[accumulator])
        gl.barrier()
        ahead = step + stages - 1
        into = ahead % stages
        async_copy.async_load(
            a_smem.index(into), a_tile + ahead * STEP_K, a_rows & inside_k(k, ahead, layout)
        )
        async_copy.async_load(
            b_smem.index(into), b_tile + ahead * STEP_K, b_rows & inside_k(k, ahead, layout)
        )
        async_copy.commit_group()
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    async_copy.wait_group(0)
    store_tile(d_desc, row, column, accumulator)


@gluon.jit
def plain_kernel(
    a_ptr,
    b_ptr,
    d_desc,
    m,
    n,
    k,
    a_stride,
    b_stride,
    vector: gl.constexpr,
    tile_m: gl.constexpr,
    tile_n: gl.constexpr,
    stages: gl.constexpr,
):
    """D = A @ B with loads of single elements through registers, a step ahead."""
    warps: gl.constexpr = gl.num_warps()
    layout: gl.constexpr = gl.BlockedLayout([1, vector], [1, 32], [warps, 1], [1, 0])
    shared: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[warps, 1], instr_shape=[16, tile_n, 16]
    )
    a_smem = gl.allocate_shared_memory(gl.bfloat16, [stages, tile_m, STEP_K], shared)
    b_smem = gl.allocate_shared_memory(gl.bfloat16, [stages, tile_n, STEP_K], shared)
    row, column = origin(m, n, tile_m, tile_n)
    a_tile, a_rows = place(a_ptr, row, m, a_stride, tile_m, layout)
    b_tile, b_rows = place(b_ptr, column, n, b_stride, tile_n, layout)
    a = gl.load(a_tile, mask=a_rows & inside_k(k, 0, layout), other=0.0)
    b = gl.load(b_tile, mask=b_rows & inside_k(k, 0, layout), other=0.0)
    accumulator = gl.zeros((tile_m, tile_n), gl.float32, sums)
    for step in range(gl.cdiv(k, STEP_K)):
        stage = step % stages
        a_smem.index(stage).store(a)
        b_smem.index(stage).store(b)
        fence_async_shared()
        gl.barrier()
        accumulator = warpgroup_mma(
            a_smem.index(stage), b_smem.index(stage).permute((1, 0)), accumulator, is_async=True
        )
        ahead = step + 1
        a = gl.load(a_tile + ahead * STEP_K, mask=a_rows & inside_k(k, ahead, layout), other=0.0)
        b = gl.load(b_tile + ahead * STEP_K, mask=b_rows & inside_k(k, ahead, layout), other=0.0)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    store_tile(d_desc, row, column, accumulator)


def without_tma(tile: tuple[int, int, int, int], a: Tensor, b: Tensor, d: Tensor) -> Callable[[], object]:
    """Return a launch of a kernel that loads A [M, K] and B [N, K], rows contiguous, without TMA."""
    tile_m, tile_n, stages, warps = tile
    (m, k), n = a.shape, b.shape[0]
    vector = math.gcd(4, k)
    kernel, vector = (async_kernel, vector) if vector > 1 else (plain_kernel, 1)
    d_layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    d_desc = TensorDescriptor.from_tensor(d, [tile_m, min(tile_n, 128)], d_layout)
    launch: Any = kernel[(-(-m // tile_m) * -(-n // tile_n),)]
    strides = k // vector, a.stride(0) // vector, b.stride(0) // vector
    return lambda: launch(a, b, d_desc, m, n, *strides, vector, tile_m, tile_n, stages, num_warps=warps)


# --- the measurement

Call = Callable[[Tensor, Tensor, Tensor], Callable[[], object]]
"""Binds an arm to A [M, K], B stored as [N, K], and D in padded rows."""


def module_of(shape: tuple[int, int, int], directory: Path) -> ModuleType:
    """Return the kernel that the planner ranks first for a shape."""
    path = directory / f"misaligned_{'x'.join(map(str, shape))}.yaml"
    path.write_text(SPEC.format(shape=list(shape)), encoding="utf-8")
    product = make(path)
    module_path = directory / f"{path.stem}.py"
    with staged(product) as found:
        module_path.write_text(found.read_text(encoding="utf-8"), encoding="utf-8")
    return import_generated(module_path)


def arms_of(module: ModuleType, n: int, k: int) -> dict[str, Call]:
    """Return what is timed, cuBLAS first."""
    matmul = module.matmul

    def copied(copy: Callable[[Tensor], Tensor]) -> Call:
        return lambda a, b, _: lambda: matmul(copy(a), copy(b).T)

    def aligned(*names: str) -> Call:
        def bind(a: Tensor, b: Tensor, _: Tensor) -> Callable[[], object]:
            left, right = a, b.T
            if "a" in names:
                left = module.align("a", left)
            if "b" in names:
                right = module.align("b", right)
            return lambda: matmul(left, right)

        return bind

    arms: dict[str, Call] = {
        "cublas": lambda a, b, _: lambda: torch.matmul(a, b.T),
        "module": aligned(),
    }
    if n % UNIT:
        arms["module, into an out of such rows"] = lambda a, b, _: (
            lambda: matmul(a, b.T, out=a.new_empty((a.shape[0], b.shape[0])))
        )
    if k % UNIT:
        arms["module, B aligned before"] = aligned("b")
        arms["module, A and B aligned before"] = aligned("a", "b")
        arms["copies by torch, elements"] = copied(by_elements)
        arms["copies by torch, words"] = copied(by_words)
        arms["copies by torch, pad"] = copied(by_pad)
    for tile in ASYNC_TILES if k % 2 == 0 else PLAIN_TILES:
        tile_m, tile_n, stages, warps = tile
        name = f"no TMA, {tile_m} x {tile_n}, {stages} stages, {warps} warps"
        arms[name] = lambda a, b, d, tile=tile: without_tma(tile, a, b, d)
    return arms


def measure(shape: tuple[int, int, int], directory: Path) -> dict[str, Any]:
    """Time all arms on a shape, by turns."""
    m, n, k = shape
    count = max(2, BYTES // (2 * (m * k + n * k + m * n)) + 1)
    a = [torch.randn(m, k, device="cuda").mul_(k**-0.5).bfloat16() for _ in range(count)]
    b = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(count)]
    d = [
        torch.empty(m, -(-n // UNIT) * UNIT, device="cuda", dtype=torch.bfloat16)[:, :n] for _ in range(count)
    ]
    reference = a[0].float() @ b[0].float().T
    results: dict[int, object] = {}
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    bound: list[object] = []  # a graph reads what was aligned for its calls, and keeps none of it
    passes = max(1, round(GRAPH_SECONDS / (count * (2 * m * n * k / 4e14 + 8e-6))))
    failed: dict[str, str] = {}
    for name, bind in arms_of(module_of(shape, directory), n, k).items():
        try:
            calls = [bind(*each) for each in zip(a, b, d, strict=True)]
            bound.append(calls)
            d[0].fill_(float("nan"))
            found = calls[0]()
            found = found if isinstance(found, Tensor) else d[0]
            error = ((found.float() - reference).norm() / reference.norm()).item()
            if not error < TOLERANCE:
                failed[name] = f"relative error {error:.3g}"
                continue

            def kept(index: int, call: Callable[[], object]) -> None:
                results[index] = call()  # so that each input has a result of its own

            graphs[name] = chain([lambda i=i, c=c: kept(i, c) for i, c in enumerate(calls)], passes)
        except (RuntimeError, ValueError, AssertionError) as problem:
            failed[name] = next(iter(str(problem).splitlines()), type(problem).__name__)
        results.clear()
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            samples[name].append(seconds(graph, passes * count))
    ratios = {
        name: statistics.median(theirs / ours for theirs, ours in zip(samples["cublas"], times, strict=True))
        for name, times in samples.items()
    }
    return {
        "shape": list(shape),
        "gpu": torch.cuda.get_device_name(),
        "over_cublas": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "seconds": {name: statistics.median(times) for name, times in samples.items()},
        "failed": failed,
    }


def main(record: str, *shapes: str) -> None:
    """Measure on each shape, and write the record after each."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for shape in shapes:
            m, n, k = map(int, shape.split("x"))
            rows.append(measure((m, n, k), Path(directory)))
            Path(record).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            sys.stderr.write(f"{shape} {rows[-1]['over_cublas']} {rows[-1]['failed']}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
