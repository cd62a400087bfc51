"""Compare the planner's first choices among kernels with scales of blocks with the times that records have.

``python -m benchmarks.fit.block_scales [RECORD.jsonl…]`` ranks the kernels of each recorded problem
as the planner does today. It prints how much longer the one that ranks first takes than the fastest, and
both beside torch. Kernels without a recorded time are left out: the last column counts the problems for
which the planner ranks one of these first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from gemmgen.planner import rank
from gemmgen.spec import Spec, SpecFile

HERE = Path(__file__).parents[1] / "blockscale"
NAMES: Final = ("h200_blocks", "h200_blocks_earlier", "h100_blocks", "h200_experts")
RECORDS: Final = tuple(HERE / f"{name}.jsonl" for name in NAMES)
OPERANDS: Final = {
    "a": {"dtype": "e4m3", "scale": {"format": "fp32_1x128"}},
    "b": {"dtype": "e4m3", "scale": {"format": "fp32_128x128"}},
    "d": {"dtype": "bf16"},
}
CLASSES: Final = ((64, "up to 64"), (512, "65 to 512"), (1024, "513 to 1,024"), (1 << 62, "above 1,024"))
"""The most rows of each class, and its name."""


@dataclass(frozen=True)
class Choice:
    """A recorded problem with the kernel that the planner ranks first today."""

    rows: int
    """Rows of A, or of each group."""
    torch_us: float | None
    """Time of torch's matmul with the same scales; None if torch has none for the problem."""
    us: dict[str, float]
    """Time of each recorded kernel that the planner proposes, by its decisions in one line."""
    first: str
    """The kernel of these that ranks first."""
    is_timed: bool
    """True if no kernel without a time ranks before it."""

    @property
    def over_best(self) -> float:
        """Time of the first choice over that of the fastest kernel."""
        return self.us[self.first] / min(self.us.values())


@dataclass(frozen=True)
class Summary:
    """First choices for the problems of one class of rows."""

    problems: int
    over_best: float
    """Geometric mean of the first choice's time over the fastest kernel's."""
    most_over_best: float
    first_speed: float | None
    """Geometric mean of torch's time over the first choice's; None without times of torch."""
    best_speed: float | None
    """Geometric mean of torch's time over the fastest kernel's; None without times of torch."""
    untimed: int
    """Problems for which the planner ranks a kernel first that was not timed."""

    @classmethod
    def of(cls, found: Sequence[Choice]) -> Summary:
        """Summarize at least one problem."""
        pairs = [(each.torch_us, each) for each in found if each.torch_us]
        first = [torch_us / each.us[each.first] for torch_us, each in pairs]
        best = [torch_us / min(each.us.values()) for torch_us, each in pairs]
        return cls(
            len(found),
            geometric_mean(each.over_best for each in found),
            max(each.over_best for each in found),
            geometric_mean(first) if first else None,
            geometric_mean(best) if best else None,
            sum(not each.is_timed for each in found),
        )


def source_of(target: str, shape: tuple[int, int, int], groups: int = 0) -> SpecFile:
    """Return the spec of a shape with every decision open.

    M of groups is the rows of all, which are equal in each group.
    """
    data = {
        "title": "e4m3 matmul with scales of blocks",
        "target": target,
        "operands": OPERANDS,
        "problem": dict(zip("mnk", shape, strict=True)),
    }
    if groups:
        data["groups"] = {"kind": "m_offsets", "count": groups, "skew": 0}
    return SpecFile.of(Spec.model_validate(data))


def choices(record: Path) -> Iterator[Choice]:
    """Yield the first choice for each problem of a record of dense matmuls, or of experts.

    The planner chooses for the card of the record.
    """
    head, *lines = map(json.loads, record.read_text(encoding="utf-8").splitlines())
    target = "h200" if "H200" in head["card"] else "h100"
    for line in lines:
        yield _choice(line, head["labels"], target)


def _choice(line: dict[str, Any], labels: dict[str, str], target: str) -> Choice:
    """Return the first choice of a line of a record."""
    if "groups" in line:
        groups, rows = line["groups"], line["rows"]
        source = source_of(target, (groups * rows, line["n"], line["k"]), groups)
        torch_us, timed = line["torch_us"], list(line["us"].items())
    else:
        shape = tuple(line["shape"])
        source, rows, torch_us = source_of(target, shape), shape[0], line["us"].get("torch")
        timed = [(name.split()[1], us) for name, us in line["us"].items() if name.startswith("blocks ")]
    us = dict[str, float]()
    for stem, found in timed:  # several kernels may have the same decisions in one line
        us[labels[stem]] = min(found, us.get(labels[stem], found))
    ranked = _ranked(source)
    proposed = [label for label in ranked if label in us]
    return Choice(
        rows, torch_us, {label: us[label] for label in proposed}, proposed[0], ranked[0] == proposed[0]
    )


def _ranked(source: SpecFile) -> list[str]:
    """Return the decisions of all legal kernels in one line each, best first."""
    return list(dict.fromkeys(candidate.label for candidate in rank(source).legal))


def by_rows(found: Iterable[Choice]) -> dict[str, Summary]:
    """Return a summary for each class of rows that occurs."""
    classes: dict[str, list[Choice]] = {}
    for each in sorted(found, key=lambda each: each.rows):
        name = next(name for most, name in CLASSES if each.rows <= most)
        classes.setdefault(name, []).append(each)
    return {name: Summary.of(each) for name, each in classes.items()}


def table(groups: dict[str, Summary]) -> str:
    """Return summaries as a table of Markdown."""
    rows = [["rows", "problems", "first over best", "most", "torch over first", "torch over best", "untimed"]]
    rows += [
        [
            name,
            str(found.problems),
            f"{found.over_best:.3f}",
            f"{found.most_over_best:.3f}",
            *(f"{speed:.2f}" if speed else "" for speed in (found.first_speed, found.best_speed)),
            str(found.untimed),
        ]
        for name, found in groups.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(map(str.rjust, row, widths)) for row in rows]
    rule = " | ".join(f"{'-' * (width - 1)}:" for width in widths)
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))


def main() -> None:
    """Print a table for each record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*", default=RECORDS)
    for record in parser.parse_args().records:
        sys.stdout.write(f"{record.name}\n{table(by_rows(choices(record)))}\n\n")


if __name__ == "__main__":
    main()
