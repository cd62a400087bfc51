"""``torch.compile`` with Triton templates alone as another generator, beside cuBLAS in a process of its own.

This file is also the script of that process: it reads a request from stdin, and needs torch with torch's own
Triton. It must not import gemmgen, whose Triton may be another version, so only the parent does.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, cast

if TYPE_CHECKING:
    from gemmgen.bench.result_log import Peer, ResultLog
    from gemmgen.bench.suite_file import Suite
    from gemmgen.problem import Shape
    from gemmgen.problem.contest import Contest

ASKED: Final[dict[str, dict[str, object]]] = {
    "bf16": {"a": "bf16", "b": "bf16", "d": "bf16"},
    "fp16": {"a": "fp16", "b": "fp16", "d": "fp16"},
    "e4m3": {"a": "e4m3", "b": "e4m3", "d": "bf16"},
    "scaled": {"a": "e4m3", "b": "e4m3", "d": "bf16", "ops": ["row_scale", "column_scale"]},
}
"""Kinds of requests to a peer: types of operands, and operations."""
NAME: Final = "Inductor's Triton templates"
MODE: Final = "max-autotune-no-cudagraphs"
"""Mode of torch.compile; the measurement captures CUDA graphs itself."""
ANSWER_SECONDS: Final = 300
"""Seconds after which an answer counts as missing: tuning a shape takes half a minute."""
LARGEST_ERROR: Final = 0.02
"""Largest relative error of a result: bf16 and e4m3 lose less than half of that."""
NO_ANSWER: Final = "its process ended without an answer"


# --- in the process of gemmgen


def time_peers(
    suite: Suite, log: ResultLog, extents: range, command: Sequence[str], progress: Callable[[str], None]
) -> None:
    """Time the peer on the named and drawn shapes of a suite, and append the results to the log.

    ``command`` starts a Python that has torch: ``env -u PYTHONPATH python3``. If it cannot run, the log has
    the reason. Results that the log already has are not timed again.
    """
    done, kinds = log.peers_done(), kinds_by_contest()
    jobs = [
        _Job(contest, shape, kinds[contest], found.description)
        for contest, found in log.contests.items()
        if contest in kinds
        for shape in suite.peer_shapes(found.dtypes.a, extents)
        if (contest, shape) not in done
    ]
    while jobs:  # one process for all jobs, and another one if it ends early
        answered = _answered(log, jobs, command, progress)
        jobs = jobs[answered:]


def kinds_by_contest() -> dict[Contest, str]:
    """Return the contests that a peer supports, each with the kind of its request."""
    from gemmgen.spec import SpecFile
    from gemmgen.spec.model import Spec

    found: dict[Contest, str] = {}
    for kind, asked in ASKED.items():
        operands = {name: {"dtype": asked[name]} for name in "abd"}
        epilogue = {"ops": asked.get("ops", [])}
        spec = Spec.model_validate(
            {"title": kind, "target": "h200", "operands": operands, "epilogue": epilogue}
        )
        found[SpecFile.of(spec).contest] = kind
    return found


class _Job(NamedTuple):
    """A shape that the peer is requested to time."""

    contest: Contest
    shape: Shape
    kind: str
    description: str


def _answered(
    log: ResultLog,
    jobs: Sequence[_Job],
    command: Sequence[str],
    progress: Callable[[str], None],
) -> int:
    """Start a process for these jobs and record its answers; return the number of finished jobs."""
    from gemmgen.processes.forking import started
    from gemmgen.processes.scratch import scratch

    with scratch() as directory:
        printed = Path(directory) / "stderr"
        try:
            with printed.open("w") as errors:
                process = subprocess.Popen(
                    [*command, str(Path(__file__).resolve())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    process_group=0,
                )
        except OSError as error:
            _note(log, jobs, NAME, f"cannot start {shlex.join(command)}: {error.strerror or error}")
            return len(jobs)
        with started(process.pid), process:
            try:
                return _written(log, jobs, process, printed, progress)
            finally:
                process.kill()


def _written(
    log: ResultLog,
    jobs: Sequence[_Job],
    process: subprocess.Popen[str],
    printed: Path,
    progress: Callable[[str], None],
) -> int:
    answers = _answers(process, _request(log, jobs))
    first = next(answers, {"why_not": NO_ANSWER})
    name = f"{NAME}, {first['versions']}" if "versions" in first else NAME
    if "why_not" in first:  # no job can be timed
        process.wait()
        _note(log, jobs, name, f"{first['why_not']}{_last_line(printed)}")
        return len(jobs)
    for number, job in enumerate(jobs):
        progress(f"{NAME}: {job.description} {'x'.join(map(str, job.shape))}, {number + 1} of {len(jobs)}")
        answer = next(answers, None)
        if answer is None:
            process.wait()
            _note(log, [job], name, f"{NO_ANSWER}{_last_line(printed)}")
            return number + 1
        if "why_not" in answer:
            _note(log, [job], name, str(answer["why_not"]))
            continue
        samples = {key: tuple(answer[key]) for key in ("seconds", "baseline_seconds", "kernels")}
        numbers = {key: float(answer[key]) for key in ("tuning_seconds", "relative_error")}
        log.write(_peer(job, name, **samples, **numbers))
    return len(jobs)


def _peer(job: _Job, name: str, **members: Any) -> Peer:
    from gemmgen.bench.result_log import Peer
    from gemmgen.literals import visible

    said: dict[str, Any] = {
        key: visible(value) if isinstance(value, str) else value for key, value in members.items()
    }
    return Peer("peer", job.shape, job.contest, visible(name), **said)


def _note(log: ResultLog, jobs: Sequence[_Job], name: str, why_not: str) -> None:
    for job in jobs:
        log.write(_peer(job, name, why_not=why_not))


def _request(log: ResultLog, jobs: Sequence[_Job]) -> dict[str, Any]:
    protocol = log.sessions[-1].protocol
    names = ("rounds", "graph_seconds", "warm_up_seconds", "settle_seconds", "l2_multiple")
    numbers = {name: getattr(protocol, name) for name in (*names, "max_input_sets", "seed")}
    return {"jobs": [{"kind": job.kind, "shape": job.shape} for job in jobs], **numbers}


def _answers(process: subprocess.Popen[str], request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Send the request and yield the process's answers; end the process if one takes too long."""
    asked, answered = cast("TextIO", process.stdin), cast("TextIO", process.stdout)
    with suppress(BrokenPipeError):
        asked.write(json.dumps(request))
        asked.close()
    while True:
        with _ended_if_late(process):
            line = answered.readline()
        try:
            yield json.loads(line)
        except ValueError:  # the end of the output, or an incomplete last line
            return


@contextmanager
def _ended_if_late(process: subprocess.Popen[str]) -> Generator[None]:
    """Kill a process unless the context ends in time."""
    timer = threading.Timer(ANSWER_SECONDS, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


# --- in the process of the peer


def main() -> None:
    """Answer a request: first the versions or a reason why nothing can run, then each job in turn."""
    sys.path.pop(0)  # the directory of this file
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other prints must not mix with the answers

    def answer(**members: Any) -> None:
        answers.write(json.dumps(members) + "\n")
        answers.flush()

    request = json.load(sys.stdin)
    try:
        import torch
        import triton  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        answer(why_not=f"{type(error).__name__}: {error}")
        return
    versions = f"torch {torch.__version__}, Triton {triton.__version__}"
    if not torch.cuda.is_available():
        answer(why_not="torch finds no CUDA GPU", versions=versions)
        return
    import torch._inductor.config as inductor

    settings: Any = inductor
    settings.max_autotune_gemm_backends = "TRITON"
    answer(versions=versions)
    gc.disable()  # unloading during a capture would end it
    with torch.cuda.stream(torch.cuda.Stream()):
        for number, job in enumerate(request["jobs"]):
            settle = request["warm_up_seconds"] if number == 0 else request["settle_seconds"]
            try:
                found = _timed(job["kind"], tuple(job["shape"]), settle, request)
            except Exception as error:  # of a compiler
                answer(why_not=f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
            else:
                answer(**found)


def _timed(kind: str, shape: tuple[int, int, int], settle: float, request: dict[str, Any]) -> dict[str, Any]:
    """Tune a shape, check its numbers, and time it in alternation with cuBLAS, as a suite's rounds do."""
    import torch

    compiler: Any = torch
    dynamo: Any = importlib.import_module("torch._dynamo")
    dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    sets = _input_sets(kind, shape, request)
    call, call_into = _calls(kind)
    compiled: Callable[..., Any] = compiler.compile(call, mode=MODE, dynamic=False, fullgraph=True)
    start = time.perf_counter()
    result, kernels = _first(compiled, sets[0][0])
    torch.cuda.synchronize()
    tuning_seconds = time.perf_counter() - start
    relative_error = _relative_error(kind, result, sets[0][0])
    if not relative_error <= LARGEST_ERROR:
        return {"why_not": f"it is wrong: relative error {relative_error:.3g}"}
    results: list[Any] = [None] * len(sets)

    def theirs(passes: int) -> None:
        for _ in range(passes):
            for inputs, d in sets:
                call_into(*inputs, d)

    def peers(passes: int) -> None:
        for _ in range(passes):
            for index, (inputs, _d) in enumerate(sets):
                results[index] = compiled(*inputs)

    theirs(1)
    peers(1)
    one_pass = _recorded(theirs, 1)
    _times([one_pass])
    pass_seconds = _times([one_pass] * 5)[-1]
    passes = math.ceil(request["graph_seconds"] / pass_seconds)
    works = [_recorded(theirs, passes), _recorded(peers, passes)]
    end = time.perf_counter() + settle
    while time.perf_counter() < end:
        _times(works)
    times = [float(f"{seconds / (passes * len(sets)):.6g}") for seconds in _times(works * request["rounds"])]
    return {
        "baseline_seconds": times[0::2],
        "seconds": times[1::2],
        "kernels": kernels,
        "tuning_seconds": round(tuning_seconds, 1),
        "relative_error": float(f"{relative_error:.6g}"),
    }


def _input_sets(kind: str, shape: tuple[int, int, int], request: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return sets of A, B, scales and D, enough of them to exceed the L2 cache together."""
    import torch

    (m, n, k), width = shape, 1 if kind in ("e4m3", "scaled") else 2
    generator = torch.Generator("cuda").manual_seed(request["seed"])
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float8_e4m3fn)
    cuda: Any = torch.cuda
    l2_bytes: int = cuda.get_device_properties(cuda.current_device()).L2_cache_size
    set_bytes = (m * k + k * n) * width + m * n * 2
    count = min(request["max_input_sets"], math.ceil(request["l2_multiple"] * l2_bytes / set_bytes))

    def normal(rows: int, columns: int, size: float = 1.0) -> Any:
        return (torch.randn(rows, columns, device="cuda", generator=generator) * size).to(dtype)

    sets: list[tuple[Any, Any]] = []
    for _ in range(count):
        a, b = normal(m, k, k**-0.5 if width == 2 else 1.0), normal(n, k).T
        scales: tuple[Any, ...] = ()
        if kind == "e4m3":
            scales = tuple(torch.ones((), device="cuda") for _ in range(2))
        elif kind == "scaled":
            row, column = ((m, 1), (1, n))
            scales = tuple(
                torch.rand(each, device="cuda", generator=generator) + 0.5 for each in (row, column)
            )
        out_dtype = dtype if width == 2 else torch.bfloat16
        sets.append(((a, b, *scales), torch.empty(m, n, device="cuda", dtype=out_dtype)))
    return sets


def _calls(kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the function to compile, and the baseline's call with D as its last argument."""
    import torch

    functions: Any = torch
    keywords: dict[str, Any] = {"out_dtype": torch.bfloat16, "use_fast_accum": True}

    def product(a: Any, b: Any) -> Any:
        return functions.matmul(a, b)

    def product_into(a: Any, b: Any, d: Any) -> Any:
        return functions.matmul(a, b, out=d)

    def scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        return functions._scaled_mm(a, b, scale_a, scale_b, **keywords)

    def scaled_into(a: Any, b: Any, scale_a: Any, scale_b: Any, d: Any) -> Any:
        return functions._scaled_mm(a, b, scale_a, scale_b, **keywords, out=d)

    return (product, product_into) if kind in ("bf16", "fp16") else (scaled, scaled_into)


def _first(compiled: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, list[str]]:
    """Make the first call, which compiles; return its result and the calls of the generated code."""
    import torch._inductor.utils as inductor

    utilities: Any = inductor
    result, sources = utilities.run_and_get_code(compiled, *inputs)
    found = re.findall(r"\b(triton_\w+)\.run\(|\b(extern_kernels\.\w+)\(", "\n".join(sources))
    return result, list(dict.fromkeys(name or other for name, other in found))


def _relative_error(kind: str, result: Any, inputs: Sequence[Any]) -> float:
    a, b, *scales = inputs
    exact = a.double() @ b.double()
    if kind == "scaled":
        exact = exact * scales[0] * scales[1]
    return ((result.double() - exact).norm() / exact.norm()).item()


def _recorded(work: Callable[[int], None], passes: int) -> Callable[[], None]:
    """Return the replay of a CUDA graph."""
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin()
    try:
        work(passes)
    finally:
        graph.capture_end()
    return graph.replay


def _times(works: Sequence[Callable[[], None]]) -> list[float]:
    """Run the works without a pause, the last one also before the first; return the time of each."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(works) + 1)]
    works[-1]()
    events[0].record()
    for work, event in zip(works, events[1:], strict=True):
        work()
        event.record()
    events[-1].synchronize()
    return [before.elapsed_time(after) * 1e-3 for before, after in pairwise(events)]


if __name__ == "__main__":
    main()
