"""What records say of kernels on shapes: the observations that the cost model's constants are fitted to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from gemmgen.bench.suite import Book, Result
from gemmgen.plan import plan_spec
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import family_for
from gemmgen.problem import Shape
from gemmgen.spec import Spec, SpecFile, load_spec

HERE = Path(__file__).parent
SPECS = (HERE / "specs", HERE.parent / "suites" / "specs")
"""Where the specs of the records are, by their stems."""


@dataclass(frozen=True)
class Observation:
    """What a kernel took on a shape."""

    contest: str
    shape: Shape
    spec: str
    """The stem of its spec."""
    kernel: Kernel
    seconds: float
    """Median over the rounds."""

    @property
    def predicted(self) -> float:
        """What the cost model says that it takes, in seconds."""
        return family_for(self.kernel).estimate(self.kernel, self.shape).seconds


Candidates = Sequence[Observation]
"""All kernels of one spec, or all pinned ones, that were timed on one shape."""


def observations(record: Path) -> Iterator[Observation]:
    """Yield what a suite's record has of every kernel on every shape.

    Raises KeyError for a kernel whose spec is not among ``SPECS``, ValueError for one that is not planned as
    its name says.
    """
    for line in Book.opened(record).current():
        if isinstance(line, Result):
            for arm in line.kernels:
                spec, _, label = arm.kernel.partition(": ")
                kernel = planned(spec, label)
                yield Observation(line.contest, line.shape, spec, kernel, median(arm.seconds))


def by_candidates(found: Iterable[Observation]) -> list[list[Observation]]:
    """Return the observations by what competed: an open spec's kernels on a shape, or the pinned ones."""
    groups: dict[tuple[str, Shape, str], list[Observation]] = {}
    for each in found:
        rival = each.spec if is_open(each.spec) else "pinned"
        groups.setdefault((each.contest, each.shape, rival), []).append(each)
    return list(groups.values())


# --- from a kernel's name to its plan


@cache
def source_of(stem: str) -> SpecFile:
    """Return the spec of this name."""
    for directory in SPECS:
        if (path := directory / f"{stem}.yaml").exists():
            return load_spec(path)
    raise KeyError(stem)


def is_open(stem: str) -> bool:
    """Whether the planner chose the kernels of a spec, shape by shape."""
    return source_of(stem).spec.tile.m is None


@cache
def planned(stem: str, label: str) -> Kernel:
    """Return the kernel of a pinned spec, or that of an open one with the decisions that a label says."""
    source = source_of(stem)
    if not label:
        return plan_spec(source)
    label = re.sub(r" \([0-9a-f]{8}\)$", "", label)
    data = source.spec.model_dump(exclude_none=True, exclude={"bench", "check", "problem"})
    spec = Spec.model_validate(_merged(data, _decisions(label)))
    kernel = plan_spec(SpecFile(spec, source.path, stem, "", positions={}, key_positions={}))
    if (found := family_for(kernel).label(kernel)) != label:
        raise ValueError(f"{stem}: {label!r} is planned as {found!r}")
    return kernel


def _decisions(label: str) -> dict[str, object]:
    """Return the sections of a spec that pin what the label of a Hopper kernel says."""
    name, tile, *others = label.split(", ")
    m, n, k = map(int, tile.split(" x "))
    numbers = {
        re.sub(r"\d+", "#", other): [int(each) for each in re.findall(r"\d+", other)] for other in others
    }
    cluster_m, cluster_n = numbers.get("cluster # x #", [1, 1])
    (occupancy,) = numbers.get("occupancy #", [1])
    (splits,) = numbers.get("K split by #", [1])
    (outstanding,) = numbers["# outstanding"]
    pinned: dict[str, object] = {
        "tile": {"m": m, "n": n, "k": k},
        "cluster": {"m": cluster_m, "n": cluster_n},
        "buffering": {"outstanding_mmas": outstanding},
        "occupancy": occupancy,
        "mma": {"rows": "n" if name == "exchanged" else "m"},
    }
    if name in ("exchanged", "pipelined"):
        order = {"order": "row"} if name == "exchanged" else {}
        return pinned | {"schedule": {"kind": "tiled", "splits": splits, **order}}
    consumers = numbers.get("# consumers") or numbers.get("# consumer") or [2]
    kind = name.replace("-", "_")
    divided = {"schedule": {"splits": splits}} if splits > 1 else {}
    return pinned | divided | {"warp_specialization": {"kind": kind, "consumers": consumers[0]}}


def _merged(left: dict[str, object], right: dict[str, object]) -> dict[str, object]:
    """Return both mappings as one, sections within sections."""
    merged = dict(left)
    for name, value in right.items():
        own = merged.get(name)
        merged[name] = {**own, **value} if isinstance(own, dict) and isinstance(value, dict) else value
    return merged
