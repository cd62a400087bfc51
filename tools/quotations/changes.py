"""Blocks from the record of a suite: what one decision changes in kernels that are otherwise equal."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence

from gemmgen.bench import ResultLog
from gemmgen.bench.suite_figures import SuiteObservation, points_of
from gemmgen.problem import Shape, shape_text
from tools.quotations.markdown import table
from tools.quotations.suite_choices import brief_label, chosen_kernels

FILLS = (0.49, 0.65, 0.8, 1.0, 2.0)
"""Programs over those that run at a time, in the table of what dependent launch changes."""


def last_wave_block(log: ResultLog, words: str) -> str:
    """Return by shape the times of tiles, by pairs of specs: taken whole, and their last wave divided."""
    sides, other = words.split()[:-1], words.split()[-1]
    by_spec = next(found for name in log.contests if (found := chosen_kernels(log, name)))
    sm_count = log.sessions[0].environment.sm_count
    header = ["M x N x K", "cuBLAS us"]
    for side in sides:
        header += [f"waves of {side}", "whole, us", "divided, us", "whole / divided"]

    def rows() -> Iterator[Sequence[str]]:
        for shape in sorted(by_spec[other]):
            best = by_spec[other][shape][0]
            cells = [shape_text(shape), f"{best.baseline_seconds * 1e6:.1f}"]
            for side in sides:
                m, n = map(int, side.split("x"))
                whole, divided = (by_spec[f"{kind}_{side}"][shape][0] for kind in ("cooperative", "stream_k"))
                waves = -(-shape[0] // m) * -(-shape[1] // n) / sm_count
                cells += [f"{waves:.2f}", f"{whole.seconds * 1e6:.1f}", f"{divided.seconds * 1e6:.1f}"]
                cells.append(f"{whole.seconds / divided.seconds:.2f}")
            yield *cells, f"{best.seconds * 1e6:.1f}"

    return table([*header, f"{other}, us"], rows())


def change_block(log: ResultLog, words: str) -> str:
    """Return by how much of the GPU a kernel's programs fill: its time in one spec over that in the other."""
    before, after = words.split()
    points = {(p.shape, p.kernel): p for p in points_of(log)}
    labelled: dict[str, dict[tuple[Shape, str], SuiteObservation]] = {before: {}, after: {}}
    for (_, shape, spec), choice in log.choices.items():
        for kernel in choice.kernels:
            if spec in labelled and (shape, kernel) in points:
                labelled[spec][shape, brief_label(kernel)] = points[shape, kernel]
    sm_count = log.sessions[0].environment.sm_count
    found = [
        (_fill(shape, label, sm_count), point.seconds / labelled[after][shape, label].seconds)
        for (shape, label), point in labelled[before].items()
        if (shape, label) in labelled[after]
    ]

    def rows() -> Iterator[Sequence[str]]:
        for lower, upper in zip((0.0, *FILLS), (*FILLS, math.inf), strict=True):
            gains = [gain for fill, gain in found if lower < fill <= upper]
            name = f"{lower:.0%} to {upper:.0%}" if upper < math.inf else f"more than {lower:.0%}"
            if not gains:
                yield name, "0", *"----"
                continue
            share = sum(gain < 1 for gain in gains) / len(gains)
            ends = f"{min(gains):.3f}", f"{max(gains):.3f}", f"{share:.0%}"
            yield name, str(len(gains)), f"{statistics.geometric_mean(gains):.3f}", *ends

    header = ["programs over places", "kernels and shapes", "geomean", "least", "most", "slower"]
    return table(header, rows())


def gains_block(log: ResultLog, words: str) -> str:
    """Return by shape the fastest kernel of the first spec, and its time there over that in each other spec.

    The range is of all kernels of the shape that all specs have.
    """
    specs = words.split()
    points = {(p.shape, p.kernel): p for p in points_of(log)}
    labelled: dict[Shape, dict[str, dict[str, SuiteObservation]]] = {}
    for (_, shape, spec), choice in sorted(log.choices.items()):
        for kernel in choice.kernels:
            if (shape, kernel) in points:
                of_shape = labelled.setdefault(shape, {})
                of_shape.setdefault(_label(kernel), {})[spec] = points[shape, kernel]

    def gain(found: Mapping[str, SuiteObservation], spec: str) -> float:
        return found[specs[0]].seconds / found[spec].seconds

    def rows() -> Iterator[Sequence[str]]:
        for shape, kernels in sorted(labelled.items()):
            common = {label: found for label, found in kernels.items() if set(specs) <= set(found)}
            if not common:
                continue
            label = min(common, key=lambda label: common[label][specs[0]].seconds)
            plain = common[label][specs[0]]
            cells: list[str] = []
            for spec in specs[1:]:
                gains = [gain(found, spec) for found in common.values()]
                cells.append(f"{gain(common[label], spec):.3f} [{min(gains):.3f}, {max(gains):.3f}]")
            times = f"{plain.baseline_seconds * 1e6:.1f}", label, f"{plain.seconds * 1e6:.1f}"
            yield shape_text(shape), *times, *cells

    header = ["M x N x K", "cuBLAS us", "fastest without", "us"]
    return table(header + [f"{spec}: gain [all kernels]" for spec in specs[1:]], rows())


def _label(kernel: str) -> str:
    """Return a kernel's tile as `brief_label` does, with its consumers if they share it."""
    consumers = re.search(r", \d consumers?", kernel)
    return f"{brief_label(kernel)}{consumers[0] if consumers else ''}"


def _fill(shape: Shape, label: str, sm_count: int) -> float:
    """Return a tiled kernel's programs over those that the GPU runs at a time."""
    tile, *more = label.split()
    tile_m, tile_n, _ = map(int, tile.split("x"))
    numbers = {word[0]: int(word[1:]) for word in more}
    programs = math.ceil(shape[0] / tile_m) * math.ceil(shape[1] / tile_n) * numbers.get("/", 1)
    return programs / (sm_count * numbers.get("·", 1))
