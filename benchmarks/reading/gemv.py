"""Whether a kernel without tensor cores is the faster one for one to four rows, in chains of launches.

``python benchmarks/reading/gemv.py RECORD MODULE… -- MxNxK…`` times bf16 matmuls of few rows by turns:
cuBLAS, the modules, and a kernel whose warps each take whole rows of the weights, multiply them on the plain
cores in fp32, and add up at the end. Every result is checked first. It writes RECORD: of each arm cuBLAS's
time over its own (the median of the pairs) and its median in seconds.
"""
# pyright: basic

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from read_only import BYTES, GRAPH_SECONDS, ROUNDS, chain, seconds
from triton.experimental import gluon

from gemmgen.bench.module_arm import bound
from gemmgen.module import import_generated, matmul_of
from gemmgen.numerics.inputs import Inputs

VARIANTS = ((1, 4, 512), (1, 8, 512), (1, 4, 1024), (1, 8, 256), (2, 4, 512), (2, 4, 256))
"""Rows of the weights for each warp, warps of a program, elements of K in a step."""
MAX_SUMS = 512
"""Sums of a warp for one row of A, times rows of A: more do not fit into registers."""
TOLERANCE = 6e-3
"""Of the result's relative Frobenius error beside an fp32 reference: bf16 rounds to 2^-9."""


@gluon.jit
def step(weights, a_ptr, k, k_offsets, sums):
    """Add one step of K to the sums of a row of A."""
    a = gl.load(a_ptr + k + k_offsets).to(gl.float32)
    return sums + weights * a[None, :]


@gluon.jit
def gemv_kernel(
    a_ptr,
    b_ptr,
    d_ptr,
    n,
    k_extent,
    m: gl.constexpr,
    warp_rows: gl.constexpr,
    warps: gl.constexpr,
    step_k: gl.constexpr,
):
    """D[m, n] = A[m, K] @ B[n, K]^T for 1, 2 or 4 rows of A; weights are loaded a step ahead."""
    layout: gl.constexpr = gl.BlockedLayout([warp_rows, 8], [1, 32], [warps, 1], [1, 0])
    program_rows: gl.constexpr = warp_rows * warps
    rows = gl.program_id(0) * program_rows + gl.arange(0, program_rows, gl.SliceLayout(1, layout))
    k_offsets = gl.arange(0, step_k, gl.SliceLayout(0, layout))
    inside = (rows < n)[:, None]
    addresses = b_ptr + (rows.to(gl.int64) * k_extent)[:, None] + k_offsets[None, :]
    sums_0 = gl.zeros([program_rows, step_k], gl.float32, layout)
    sums_1 = sums_0
    sums_2 = sums_0
    sums_3 = sums_0
    loaded = gl.load(addresses, mask=inside, other=0.0, eviction_policy="evict_first")
    for k in range(0, k_extent, step_k):
        weights = loaded.to(gl.float32)
        ahead = inside & (k + step_k < k_extent)
        loaded = gl.load(addresses + (k + step_k), mask=ahead, other=0.0, eviction_policy="evict_first")
        sums_0 = step(weights, a_ptr, k, k_offsets, sums_0)
        if m > 1:
            sums_1 = step(weights, a_ptr + k_extent, k, k_offsets, sums_1)
        if m > 2:
            sums_2 = step(weights, a_ptr + 2 * k_extent, k, k_offsets, sums_2)
            sums_3 = step(weights, a_ptr + 3 * k_extent, k, k_offsets, sums_3)
    gl.store(d_ptr + rows, gl.sum(sums_0, 1).to(gl.bfloat16), mask=rows < n)
    if m > 1:
        gl.store(d_ptr + n + rows, gl.sum(sums_1, 1).to(gl.bfloat16), mask=rows < n)
    if m > 2:
        gl.store(d_ptr + 2 * n + rows, gl.sum(sums_2, 1).to(gl.bfloat16), mask=rows < n)
        gl.store(d_ptr + 3 * n + rows, gl.sum(sums_3, 1).to(gl.bfloat16), mask=rows < n)


def gemv(
    variant: tuple[int, int, int], a: torch.Tensor, b: torch.Tensor, d: torch.Tensor
) -> Callable[[], object]:
    """Return a launch of the kernel on A [M, K], B [K, N] (K contiguous) and D [M, N]."""
    (m, k), n = a.shape, b.shape[1]
    warp_rows, warps, step_k = variant
    launch: Any = gemv_kernel[(-(-n // (warp_rows * warps)),)]
    return lambda: launch(a, b, d, n, k, m, warp_rows, warps, step_k, num_warps=warps)


def measure(modules: list[Path], shape: tuple[int, int, int]) -> dict[str, Any]:
    """Time cuBLAS, the modules and the variants on a shape, by turns."""
    m, n, k = shape
    count = max(2, BYTES // (n * k * 2) + 1)
    a = [torch.randn(m, k, device="cuda").mul_(k**-0.5).bfloat16() for _ in range(count)]
    b = [torch.randn(n, k, device="cuda").bfloat16().T for _ in range(count)]
    d = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    triples = list(zip(a, b, d, strict=True))
    arms: dict[str, list[Callable[[], object]]] = {
        "cublas": [lambda x=x, y=y, z=z: torch.matmul(x, y, out=z) for x, y, z in triples]
    }
    for path in modules:
        matmul = matmul_of(import_generated(path))
        arms[path.stem] = [bound(matmul, Inputs(x, y, {}), z) for x, y, z in triples]
    for variant in VARIANTS:
        warp_rows, warps, step_k = variant
        if k % step_k == 0 and m * warp_rows * step_k <= MAX_SUMS * 4:
            name = f"gemv, {warp_rows} rows a warp, {warps} warps, {step_k} of K"
            arms[name] = [gemv(variant, x, y, z) for x, y, z in triples]
    reference = a[0].float() @ b[0].float()
    for name, calls in arms.items():
        d[0].fill_(float("nan"))
        calls[0]()
        error = ((d[0].float() - reference).norm() / reference.norm()).item()
        if not error < TOLERANCE:
            raise SystemExit(f"{name} is wrong at {shape}: relative error {error:.3g}")
    passes = max(1, round(GRAPH_SECONDS / (count * (n * k * 2 / 4.5e12 + 2.5e-6))))
    graphs = {name: chain(calls, passes) for name, calls in arms.items()}
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
    }


def main(record: str, *arguments: str) -> None:
    """Measure on each shape, and write the record."""
    border = arguments.index("--")
    modules = [Path(each) for each in arguments[:border]]
    rows = [measure(modules, tuple(map(int, shape.split("x")))) for shape in arguments[border + 1 :]]
    Path(record).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
