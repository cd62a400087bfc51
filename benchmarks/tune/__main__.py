"""Tune a shape on the GPU of this machine, and measure every kernel of a committed set for comparison.

``python -m benchmarks.tune DIR`` from the root of the repository writes the store, the winner and
``record.jsonl`` into a directory; ``--candidates`` writes the set anew, which needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemmgen.hardware import HOPPER
from gemmgen.plan.planner import rank
from gemmgen.processes.scratch import scratch
from gemmgen.spec import SpecFile, load_spec
from gemmgen.tune.candidates import TuningCandidate, TuningTarget, candidate_of, first_candidates, neighbours
from gemmgen.tune.measuring import TuningProgress
from gemmgen.tune.options import TuningOptions
from gemmgen.tune.outcome import Outcome
from gemmgen.tune.search import ROUNDS
from gemmgen.tune.trials import TrialRecord, TrialSamples
from gemmgen.tune.tuning import tune
from gemmgen.tune.worker import Comparison, GpuWorker, compile_in_children, cuda_machine, find_gpus

HERE = Path(__file__).parent
SPEC = HERE / "open.yaml"
SHAPE = (1024, 4096, 4096)
SET = HERE / "candidates.jsonl"
"""The pins of each kernel, the planner's first choice first."""
RANKED = 40
"""Kernels of the planner's ranking in the set."""
AROUND = 2
"""The first of them, whose neighbours are in it too."""
PATHS = ("spec", "written")
"""Members of a report with paths of this machine, which the record omits."""
DUELS = 3
"""Number of the fastest kernels of the set that are measured against the winner again."""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--candidates", action="store_true", help="only write the set of kernels")
    arguments = parser.parse_args()
    if arguments.candidates:
        lines = (json.dumps(dict(each.pins)) for each in chosen())
        (arguments.directory / SET.name).write_text("".join(f"{line}\n" for line in lines))
        return
    directory: Path = arguments.directory
    with (directory / "record.jsonl").open("w") as file:
        for line in measured(directory):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(
                json.dumps({name: value for name, value in line.items() if name not in ("samples", "pins")})
            )


def chosen() -> list[TuningCandidate]:
    """Return the planner's first ranks, tuning's first candidates, and neighbours of the first kernel."""
    tuned = TuningTarget(load_spec(SPEC), SHAPE)
    ranked = [candidate_of(tuned, each.plan) for each in rank(SpecFile.of(tuned.spec())).to_measure(RANKED)]
    around = [other for each in ranked[:AROUND] for other in neighbours(tuned, each.pins)]
    return list({each.kernel: each for each in (*ranked, *first_candidates(tuned, RANKED), *around)}.values())


def committed() -> list[TuningCandidate]:
    """Return the kernels of the set; raises ValueError for one that is not legal any more."""
    tuned = TuningTarget(load_spec(SPEC), SHAPE)
    found: list[TuningCandidate] = []
    for line in SET.read_text().splitlines():
        plan = tuned.plan(json.loads(line))
        if plan is None:
            raise ValueError(f"not legal any more: {line}")
        found.append(candidate_of(tuned, plan))
    return found


def measured(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the record: the session, tuning twice, every kernel of the set, and the duels."""
    devices, environment = find_gpus(cuda_machine, [0], HOPPER)
    yield {"line": "session", "environment": asdict(environment), "shape": SHAPE, "rounds": ROUNDS}
    line, outcome = _tuned(directory, "tuned")
    yield line
    yield from trial_lines(outcome.trials)
    yield _tuned(directory, "again")[0]
    winner, kernels = outcome.winner, committed()
    with scratch() as modules:
        paths = {each.kernel: Path(modules) / f"kernel_{each.kernel[:16]}.py" for each in (winner, *kernels)}
        for each in (winner, *kernels):
            paths[each.kernel].write_text(each.module)
        began = time.monotonic()
        failures = compile_in_children(winner_spec().request, SHAPE, [*paths.values()])
        yield {"line": "compiled", "kernels": len(paths), "seconds": round(time.monotonic() - began, 1)}
        gpu = GpuWorker(devices[0])
        ratios: dict[str, float] = {}
        for each in kernels:
            failure = failures.get(paths[each.kernel])
            found = None if failure else _measured(gpu, paths, each, kernels[0], ROUNDS[1])
            yield {"line": "kernel", **_line(each, found, failure)}
            if isinstance(found, TrialSamples):
                ratios[each.kernel] = found.against_spread.median
        by_kernel = {each.kernel: each for each in kernels}
        for kernel in sorted(ratios, key=lambda kernel: -ratios[kernel])[:DUELS]:
            found = _measured(gpu, paths, winner, by_kernel[kernel], ROUNDS[-1])
            yield {"line": "duel", "against": by_kernel[kernel].label, **_line(winner, found, None)}
        gpu.close()


def winner_spec() -> SpecFile:
    """Return the spec that all kernels compute."""
    return load_spec(SPEC)


def _tuned(directory: Path, line: str) -> tuple[dict[str, Any], Outcome]:
    began = time.monotonic()
    (outcome,) = tune(
        [SPEC],
        [SHAPE],
        TuningOptions(
            store=str(directory / "tune.db"),
            out=directory / "tuned",
            table=directory / "table.jsonl",
            devices=[0],
        ),
        progress=_tell(),
    )
    seconds = round(time.monotonic() - began, 1)
    found = {name: value for name, value in outcome.as_dict().items() if name not in PATHS}
    return {"line": line, "seconds": seconds, **found}, outcome


def trial_lines(trials: Sequence[TrialRecord]) -> Iterator[dict[str, Any]]:
    """Yield a line for each trial, without its samples."""
    for each in trials:
        found = each.samples
        yield {
            "line": "trial",
            "number": each.number,
            "label": each.label,
            "rung": each.job.rung,
            "kernel": each.job.kernel[:16],
            "against": each.job.against[:16],
            "gpu_seconds": round(each.gpu_seconds, 4),
            "ratio": found and round(found.against_spread.median, 4),
            "quartiles": found and [round(quartile, 4) for quartile in found.against_spread.quartiles],
            "why_not": each.message or None,
        }


def _tell() -> Any:
    told: set[str] = set()

    def tell(tick: TuningProgress) -> None:
        text = tick.text.partition(",")[0]
        if text not in told:
            told.add(text)
            print(f"{time.strftime('%H:%M:%S')} {tick.spent:.1f} s: {tick.text}", flush=True)

    return tell


def _measured(
    gpu: GpuWorker, paths: dict[str, Path], own: TuningCandidate, other: TuningCandidate, rounds: int
) -> TrialSamples | str:
    modules = {kernel: paths[kernel] for kernel in (own.kernel, other.kernel)}
    answer = gpu.measure(Comparison(winner_spec(), SHAPE, own.kernel, other.kernel, modules, rounds))
    return answer.samples or f"{answer.why}: {answer.message}"


def _line(own: TuningCandidate, found: TrialSamples | str | None, failure: str | None) -> dict[str, Any]:
    known: dict[str, Any] = {"label": own.label, "kernel_sha256": own.kernel, "pins": dict(own.pins)}
    if not isinstance(found, TrialSamples):
        return known | {"why_not": failure or found}
    samples: dict[str, Sequence[float]] = {
        "seconds": found.seconds,
        "against_seconds": found.against_seconds,
        "baseline_seconds": found.baseline_seconds,
    }
    return known | {
        "ratio": round(found.against_spread.median, 4),
        "quartiles": [round(each, 4) for each in found.against_spread.quartiles],
        "baseline_ratio": round(found.baseline_spread.median, 4),
        "samples": samples,
    }


if __name__ == "__main__":
    main()
