"""Processor time of what needs no GPU: imports, loading, planning, refusing, simulating and building.

    python benchmarks/harness/planning.py OUT.json

Prints each figure, and writes all samples beside the machine and its load. Tests read no clock: they count
work (`tests/work.py`), and these are the times that it takes.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch
import triton  # pyright: ignore[reportMissingTypeStubs]

from gemmgen.errors import GemmgenError
from gemmgen.planner import plan_spec
from gemmgen.product import make
from gemmgen.spec import load_spec
from gemmgen.spec.writing import spec_text
from gemmgen.verify.launches import Launch
from gemmgen.verify.simulation import simulate_product

ROOT = Path(__file__).parents[2]
STATED = ROOT / "specs" / "h100_bf16.yaml"
OPEN = {"title": "t", "operands": {operand: {"dtype": "bf16"} for operand in "abd"}}
LARGE = {
    "tile.m": [64, 128, 256],
    "tile.n": [64, 96, 128, 160, 192, 256],
    "tile.k": [32, 64, 128],
    "cluster.m": [1, 2, 4],
    "cluster.n": [1, 2],
    "schedule.width": [4, 8, 16],
    "schedule.order": ["row", "snake", "hilbert"],
    "buffering.stages": [3, 4, 5],
}
"""A search of 52,488 combinations. The planner tries 10,000 of them."""
WIDTH = {"schedule": {"width": 5000}}
"""With which no combination is legal."""
SAMPLES = 5

Work = Callable[[], object]


def processor_seconds(work: Work) -> float:
    """Return the processor time of a call in this process."""
    start = time.process_time()
    with suppress(GemmgenError):
        work()
    return time.process_time() - start


def child_seconds(*command: str, **environment: str) -> float:
    """Return the processor time of a command, with the processes that it starts; it must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def import_seconds(module: str, *, after: str = "sys") -> float:
    """Return the processor time of importing a module in a new process that has imported another one."""
    program = (
        f"import sys, time, {after}; sys.path.insert(0, 'generated'); start = time.process_time(); "
        f"import {module}; print(time.process_time() - start)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def build_seconds() -> float:
    """Return the processor time of `gemmgen build` of a spec with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        build = ("-m", "gemmgen", "build", str(STATED), "--out", str(Path(folder, "out")))
        return child_seconds(*build, GEMMGEN_CACHE_DIR=str(Path(folder, "cache")))


def repeated(work: Work, samples: int = SAMPLES) -> list[float]:
    """Return the processor times of some calls, after one that imports and fills caches."""
    processor_seconds(work)
    return [processor_seconds(work) for _ in range(samples)]


def figures(folder: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each figure, and its samples in seconds."""
    yield "import gemmgen.cli", [import_seconds("gemmgen.cli") for _ in range(SAMPLES)]
    hopper = "triton.experimental.gluon.nvidia.hopper"
    yield (
        "import a generated module, after torch and Triton",
        [import_seconds("h100_bf16", after=f"torch, {hopper}") for _ in range(SAMPLES)],
    )
    yield "load a stated spec", repeated(lambda: load_spec(STATED))
    stated = load_spec(STATED)
    yield "plan a stated spec", repeated(lambda: plan_spec(stated), 4 * SAMPLES)
    for target in ("h100", "b200"):
        path = folder / f"{target}.yaml"
        path.write_text(spec_text({**OPEN, "target": target}))
        source = load_spec(path)
        yield f"plan an open spec for {target}", repeated(lambda source=source: plan_spec(source))
    for name, rest in (("legal", {}), ("all refused", WIDTH)):
        path = folder / "large.yaml"
        path.write_text(spec_text({**OPEN, "target": "h100", **rest, "search": kept(LARGE, rest)}))
        source = load_spec(path)
        yield f"search 10,000 combinations, {name}", repeated(lambda source=source: plan_spec(source))
    specs = sorted((ROOT / "specs").glob("*.yaml"))
    yield "plan and render each spec", [processor_seconds(lambda path=path: make(path)) for path in specs]
    invalid = sorted((ROOT / "tests" / "invalid").glob("*/*.yaml"))
    yield "refuse each invalid spec", [processor_seconds(lambda path=path: make(path)) for path in invalid]
    yield "simulate 1024 x 1024 x 1024 under four schedules", repeated(simulated((1024, 1024, 1024)), 2)
    yield "build a spec from scratch, with compiler and simulator", [build_seconds() for _ in range(3)]


def kept(search: Mapping[str, object], stated: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a search that are in other sections than those that a spec states."""
    return {name: values for name, values in search.items() if name.partition(".")[0] not in stated}


def simulated(shape: tuple[int, int, int]) -> Work:
    """Return the simulation of a generated module under four schedules, in this process."""
    product = make(STATED)
    launch = Launch(shape, 1, "integers", ("lazy", "eager", "lifo", "random"))
    return lambda: simulate_product(product, (launch,), processes=1)


def machine() -> dict[str, object]:
    """Return the machine and its load, by which the times are to be read."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {"processor": model, "cores": os.cpu_count(), "load": [round(each, 2) for each in os.getloadavg()]}


def main() -> None:
    """Measure, print the least, the median and the most of each figure, and write every sample."""
    (out,) = sys.argv[1:]
    before, found = machine(), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as folder:
        for name, samples in figures(Path(folder)):
            gc.collect()
            found[name] = [round(sample, 5) for sample in samples]
            least, middle, most = min(samples), statistics.median(samples), max(samples)
            sys.stdout.write(f"{name:56} {least:9.4f} {middle:9.4f} {most:9.4f} s\n")
            sys.stdout.flush()
    record = {
        "machine": before,
        "load_after": machine()["load"],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "processor_seconds": found,
    }
    Path(out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
