"""Figures of a record of groups and batches: ``python -m benchmarks.grouped.summary RECORD.jsonl``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, cast

FEW_ROWS = 16
"""Mean rows of a group with rows up to which reading the weights decides the time."""
LAUNCH_US = 3.0
"""Microseconds of a kernel that reads nothing, added to the time in which weights are read."""


@dataclass(frozen=True)
class Measured:
    """A point of a record in which torch and a kernel were timed."""

    line: dict[str, Any]

    @property
    def name(self) -> str:
        """Problem, rows and skew."""
        name, rows, skew = self.line["key"]
        return f"{name}, {rows} rows" + ("" if skew is None else f", skew {skew:g}")

    @property
    def us(self) -> dict[str, float]:
        """Microseconds of a call of each right kernel, in the planner's order."""
        return self.line["us"]

    @property
    def best(self) -> str:
        """The fastest kernel."""
        return min(self.us, key=self.us.__getitem__)

    @property
    def best_speed(self) -> float:
        """Torch's time over that of the fastest kernel."""
        return self.line["torch_us"] / self.us[self.best]

    @property
    def first_speed(self) -> float:
        """Torch's time over that of the planner's first choice; 0 if its result is wrong."""
        first = self.us.get(self.line["first"])
        return self.line["torch_us"] / first if first else 0.0

    @property
    def regret(self) -> float:
        """Time of the planner's first choice over that of the fastest kernel."""
        return self.us[self.line["first"]] / self.us[self.best]

    @property
    def mean_rows(self) -> float:
        """Mean rows of the groups that have rows."""
        return self.line["rows"] / self.line["active"]

    def floor_us(self, bytes_per_second: float) -> float:
        """Return the microseconds in which the GPU reads the weights of all groups with rows."""
        read = self.line["active"] * self.line["n"] * self.line["k"] * 2
        return read / bytes_per_second * 1e6 + LAUNCH_US

    def over_floor(self, bytes_per_second: float) -> float:
        """Return the time of the first choice over the time in which the GPU reads the weights."""
        return self.us[self.line["first"]] / self.floor_us(bytes_per_second)

    def dense_ratios(self) -> dict[str, float]:
        """Return the rate of each kernel over that of the dense kernel with its tile and schedule."""
        return {stem: us / self.us[stem] for stem, us in self.line["dense_us"].items()}


Row = tuple[str, Sequence[Measured]]


def summary(lines: Sequence[dict[str, Any]]) -> str:
    """Return the figures of a record as text."""
    header, points = lines[0], [Measured(line) for line in lines if line.get("us")]
    skipped = [line for line in lines[1:] if not line.get("us")]
    grouped = [point for point in points if point.line["kind"] == "m_offsets"]
    batched = [point for point in points if point.line["kind"] == "batched"]
    wrong = {stem for line in lines for stem in line.get("wrong", ())}
    read = header["read_bytes_per_second"]
    text = [
        f"{header['card']}, torch {header['torch']}, Triton {header['triton']}; reads {read / 1e12:.3f} TB/s",
        f"{len(points)} points, {len(skipped)} without times, {len(wrong)} kernels that are wrong somewhere",
        *(f"  {stem}: {header['labels'][stem]}" for stem in sorted(wrong)),
        *(f"  {line['key']}: {line.get('skipped', 'no kernel is right')}" for line in skipped),
        "",
        *_speeds(grouped, batched),
        "",
        *_few_rows(grouped, read),
        "",
        *_dense(grouped),
        "",
        *(f"{point.name}: {_speed(point)}" for point in batched),
    ]
    return "\n".join(text) + "\n"


def _speed(point: Measured) -> str:
    return f"first {point.first_speed:.3f}, best {point.best_speed:.3f}"


def _speeds(grouped: Sequence[Measured], batched: Sequence[Measured]) -> list[str]:
    rows: list[Row] = [("all of m_offsets", grouped), ("batched", batched)]
    for tokens in sorted({point.line["tokens"] for point in grouped}):
        rows.append((f"{tokens} tokens", [each for each in grouped if each.line["tokens"] == tokens]))
    for skew in sorted({point.line["skew"] for point in grouped}):
        rows.append((f"skew {skew:g}", [each for each in grouped if each.line["skew"] == skew]))
    for name in dict.fromkeys(each.line["name"].split()[0] for each in grouped):
        rows.append((name, [each for each in grouped if each.line["name"].split()[0] == name]))
    titles = "points  first: mean  least   best: mean  least   first / best: mean   most"
    found = ["Speed over torch of the planner's first choice and of the best kernel:", f"{'':18} {titles}"]
    for name, points in rows:
        chosen = [each for each in points if each.first_speed]
        if not chosen:
            continue
        firsts, bests = [each.first_speed for each in chosen], [each.best_speed for each in chosen]
        regrets = [each.regret for each in chosen]
        speeds = " ".join(f"{geometric_mean(each):12.3f} {min(each):6.3f}" for each in (firsts, bests))
        lost = f"{geometric_mean(regrets):20.3f} {max(regrets):6.3f}"
        found.append(f"{name:18} {len(chosen):6} {speeds} {lost}")
    found += _extremes("least speed of the first choice", grouped, lambda each: each.first_speed, _speed)
    return [
        *found,
        *_extremes(
            "largest time of the first choice over the best", grouped, lambda each: -each.regret, _lost
        ),
    ]


def _lost(point: Measured) -> str:
    return f"{point.regret:.3f}, best is {point.best}"


def _extremes(
    title: str,
    points: Sequence[Measured],
    key: Callable[[Measured], float],
    told: Callable[[Measured], str],
) -> list[str]:
    chosen = sorted((each for each in points if each.first_speed), key=key)[:8]
    return [f"{title}:", *(f"  {each.name}: {told(each)}" for each in chosen)]


def _few_rows(grouped: Sequence[Measured], read: float) -> list[str]:
    few = [each for each in grouped if each.first_speed and each.mean_rows <= FEW_ROWS]
    if not few:
        return []
    found = [each.over_floor(read) for each in few]
    best = [each.us[each.best] / each.floor_us(read) for each in few]
    title = f"{len(few)} points of 1 to {FEW_ROWS} rows of a group with rows"
    span = f"from {min(found):.3f} to {max(found):.3f}"
    return [
        f"{title}, time over that of reading the weights and {LAUNCH_US:g} us:",
        f"  first choice {geometric_mean(found):.3f}, {span}; best {geometric_mean(best):.3f}",
        *_extremes(
            "most", few, lambda each: -each.over_floor(read), lambda each: f"{each.over_floor(read):.3f}"
        ),
    ]


def _dense(grouped: Sequence[Measured]) -> list[str]:
    large = [each for each in grouped if each.line["dense_us"]]
    found: list[str] = ["Rate of a kernel of groups over the dense kernel with its tile and schedule:"]
    chosen: list[float] = []
    for each in large:
        ratios = each.dense_ratios()
        cells = {"first": each.line["first"], "best": each.best}
        texts = [
            f"{name} {each.line['flops'] / each.us[stem] / 1e6:.0f} TFLOP/s, {ratios[stem]:.3f} of dense"
            for name, stem in cells.items()
            if stem in ratios
        ]
        found.append(f"  {each.name}: {'; '.join(texts)}")
        if each.line["first"] in ratios:
            chosen.append(ratios[each.line["first"]])
    if chosen:
        found.append(
            f"  first choice: {geometric_mean(chosen):.3f} in geometric mean, least {min(chosen):.3f}"
        )
    return found if large else []


def main() -> None:
    """Print the figures."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    lines = cast("list[dict[str, Any]]", [json.loads(line) for line in text.splitlines()])
    sys.stdout.write(summary(lines))


if __name__ == "__main__":
    main()
