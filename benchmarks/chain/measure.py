"""The matmuls of a transformer's layers, one after the other in a CUDA graph: torch's against gemmgen's.

``python benchmarks/chain/measure.py RECORD`` times the chain of q, k, v, o, gate-up and down of Llama-3-8B
for each number of rows, bf16, through layers whose weights are all different and together larger than L2.
What attention and the activation compute is left out: o takes q, and down the first half of gate-up. Each
matmul reads what one before it wrote, so that a dependent launch gains no more than it would in a model.

Three arms take turns, each a graph of its own: torch.matmul; gemmgen's kernels; and gemmgen's kernels that
ask for their weights before the kernel ahead has ended. Which kernel a matmul gets is measured first, among
those that the planner ranks first for its shape, in a chain of this shape alone. Every result is checked.
"""
# pyright: basic

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gemmgen.bench.machine import CudaMachine
from gemmgen.bench.module_arm import bound
from gemmgen.device import captured_graph
from gemmgen.module import import_generated, matmul_of
from gemmgen.numerics.inputs import Inputs
from gemmgen.plan.planner import rank
from gemmgen.render import render
from gemmgen.spec import SpecFile, load_spec
from gemmgen.spec.model import Runs

SPECS = Path(__file__).parent.parent / "suites" / "specs"
ARMS = {"plain": "h200_bf16", "dependent": "h200_bf16_dependent"}
"""Each arm of ours, and the spec whose planner ranks its kernels."""
ROWS = (1, 16, 64, 512)
HIDDEN, KEYS, GATE_UP = 4096, 1024, 28672
"""Of Llama-3-8B: the width, that of all keys or values, and that of gate and up together."""
CHAIN = (
    ("q", HIDDEN, HIDDEN),
    ("k", KEYS, HIDDEN),
    ("v", KEYS, HIDDEN),
    ("o", HIDDEN, HIDDEN),
    ("gate-up", GATE_UP, HIDDEN),
    ("down", HIDDEN, GATE_UP // 2),
)
"""Each matmul: its N and its K."""
LAYERS = 4
CANDIDATES = 4
ROUNDS = 15
LEAST_SECONDS = 4e-3
"""Of one sample."""
CHOICE_ROUNDS = 7
TOLERANCE = 6e-3
"""Of a result's relative Frobenius error beside fp32: bf16 rounds to 2^-9."""

Call = Callable[[], object]
Job = tuple[str, tuple[int, int, int], str, str]
"""The arm, the shape, the kernel's label, and its module's source."""


def ranked(arm: str, shape: tuple[int, int, int]) -> list[Job]:
    """Return what the planner ranks first for a shape."""
    path = SPECS / f"{ARMS[arm]}.yaml"
    spec = load_spec(path).spec.model_copy(update={"bench": Runs(shapes=(shape,)), "problem": None})
    return [
        (arm, shape, each.label, render(each.plan, spec_name=path.name, spec_sha256="0" * 64))
        for each in rank(SpecFile.of(spec)).to_measure(CANDIDATES)
    ]


def compiled(module: Path, shape: tuple[int, int, int]) -> None:
    """Compile a module by a call; what it compiles is kept on the disk."""
    m, n, k = shape
    a, b = (torch.zeros(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    matmul_of(import_generated(module))(a, b.T)
    torch.cuda.synchronize()


def weights(n: int, k: int) -> torch.Tensor:
    """Return weights [N, K] that keep the size of what they multiply."""
    return torch.randn(n, k, device="cuda").mul_(k**-0.5).bfloat16()


def graph_of(calls: list[Call]) -> torch.cuda.CUDAGraph:
    """Capture the calls, one after the other; none of them is the first of its kernel."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    with captured_graph() as graph:
        for call in calls:
            call()
    return graph


def seconds(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Return what one replay takes, among so many."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / replays


def by_turns(graphs: dict[Any, torch.cuda.CUDAGraph], rounds: int) -> dict[Any, list[float]]:
    """Return the seconds of each graph, a sample in each round."""
    replays = max(1, round(LEAST_SECONDS / min(seconds(graph, 2) for graph in graphs.values())))
    samples: dict[Any, list[float]] = {name: [] for name in graphs}
    for number in range(rounds):
        names = list(graphs)
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            samples[name].append(seconds(graphs[name], replays))
    return samples


def bind(matmul: Any, a: torch.Tensor, weight: torch.Tensor, d: torch.Tensor) -> Call:
    """Bind one matmul of ours to its tensors."""
    return bound(matmul, Inputs(a, weight.T, {}), d)


def check(call: Call, a: torch.Tensor, weight: torch.Tensor, d: torch.Tensor, label: str) -> None:
    """Refuse a kernel whose result is not the product."""
    d.fill_(float("nan"))
    call()
    exact = a.float() @ weight.float().T
    error = ((d.float() - exact).norm() / exact.norm()).item()
    if not error <= TOLERANCE:
        raise SystemExit(f"{label}: a relative error of {error:.3g}")


def fastest(shape: tuple[int, int, int], kernels: list[tuple[str, str, Any]]) -> dict[str, tuple[str, Any]]:
    """Return the label and the matmul of each arm's fastest kernel, each in a chain of this shape alone."""
    m, n, k = shape
    count = max(4, 300_000_000 // (n * k * 2))
    sets = [
        (weights(m, k), weights(n, k), torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
        for _ in range(count)
    ]
    graphs: dict[int, torch.cuda.CUDAGraph] = {}
    kept: list[list[Call]] = []  # calls hold workspaces, which graphs read
    for number, (_, label, matmul) in enumerate(kernels):
        kept.append([bind(matmul, *each) for each in sets])
        check(kept[-1][0], *sets[0], label)
        graphs[number] = graph_of(kept[-1])
    medians = {number: statistics.median(times) for number, times in by_turns(graphs, CHOICE_ROUNDS).items()}
    chosen: dict[str, tuple[str, Any]] = {}
    for arm in ARMS:
        best = min((each for each in medians if kernels[each][0] == arm), key=lambda each: medians[each])
        chosen[arm] = kernels[best][1:]
    return chosen


def chains(m: int, chosen: dict[tuple[int, int], dict[str, tuple[str, Any]]]) -> dict[str, list[Call]]:
    """Return the calls of every arm through all layers; the arms share the weights and the results."""
    calls: dict[str, list[Call]] = {"torch": [], **{arm: [] for arm in ARMS}}
    x = weights(m, HIDDEN)
    for _ in range(LAYERS):
        results: dict[str, torch.Tensor] = {}
        for name, n, k in CHAIN:
            a = {"o": results.get("q", x), "down": results.get("gate-up", x)[:, : GATE_UP // 2]}.get(name, x)
            weight, d = weights(n, k), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            calls["torch"].append(partial(torch.matmul, a, weight.T, out=d))
            calls["torch"][-1]()
            for arm, (label, matmul) in chosen[n, k].items():
                call = bind(matmul, a, weight, d)
                check(call, a, weight, d, f"{name}, {arm}: {label}")
                calls[arm].append(call)
            results[name] = d
        x = results["down"]
    return calls


def main(record: str) -> None:
    """Measure the chain for each number of rows, and write the record."""
    shapes = sorted({(m, n, k) for m in ROWS for _, n, k in CHAIN})
    with tempfile.TemporaryDirectory() as folder:
        # Before this process uses the GPU: the workers are forked.
        with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
            lists = pool.map(ranked, *zip(*((arm, shape) for shape in shapes for arm in ARMS), strict=True))
            jobs = [job for each in lists for job in each]
            paths = [Path(folder, f"kernel_{number}.py") for number in range(len(jobs))]
            for path, (*_, source) in zip(paths, jobs, strict=True):
                path.write_text(source, encoding="utf-8")
            list(pool.map(compiled, paths, [shape for _, shape, *_ in jobs]))
        rows: list[dict[str, Any]] = []
        for m in ROWS:
            chosen: dict[tuple[int, int], dict[str, tuple[str, Any]]] = {}
            for n, k in dict.fromkeys((n, k) for _, n, k in CHAIN):
                kernels = [
                    (arm, label, matmul_of(import_generated(path)))
                    for path, (arm, shape, label, _) in zip(paths, jobs, strict=True)
                    if shape == (m, n, k)
                ]
                chosen[n, k] = fastest((m, n, k), kernels)
            arms = chains(m, chosen)
            samples = by_turns({arm: graph_of(calls) for arm, calls in arms.items()}, ROUNDS)
            over = {
                arm: statistics.quantiles(
                    [t / ours for t, ours in zip(samples["torch"], samples[arm], strict=True)], n=4
                )
                for arm in ARMS
            }
            rows.append(
                {
                    "rows": m,
                    "layers": LAYERS,
                    "seconds_per_layer": {arm: statistics.median(s) / LAYERS for arm, s in samples.items()},
                    "over_torch_quartiles": over,
                    "kernels": {
                        name: {arm: label for arm, (label, _) in chosen[n, k].items()} for name, n, k in CHAIN
                    },
                }
            )
            sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    environment = CudaMachine(torch.device("cuda", torch.cuda.current_device())).environment()
    found = {"environment": vars(environment), "rows": rows}
    Path(record).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
