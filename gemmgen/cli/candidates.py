"""A ranking as text: the table of `gemmgen plan --candidates`, and the groups of `--explain`."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.search import geometric_mean
from gemmgen.planner import Candidate, Ranking, field_values
from gemmgen.planner.ranking import Group
from gemmgen.problem import shape_text

TEXT_WIDTH = 110
MEASURES = ("waves", "L2 GB", "time", "slower by")
"""Columns after the decisions, if one problem decides."""
MEASURES_OF_SEVERAL = ("mean", "worst", "at", "slower by")
"""Columns after the decisions, if several problems decide."""
WORDS = frozenset({"kernel", "tile", "cluster", "order", "minor", "split-K", "D", "at", "slower by"})
"""Columns of words, which are aligned to the left; numbers are aligned to the right."""

LEGEND = (
    "time: us, a prediction to rank by, not a measurement; slower by how much than the first one, and why"
)
LEGEND_OF_SEVERAL = "mean (geometric) and worst over these problems: the time over that of the best one there"


def candidates_table(ranking: Ranking, limit: int) -> str:
    """Return the first `limit` candidates of a ranking as aligned lines, after a line that counts all."""
    count, family = len(ranking.legal), ranking.legal[0].family
    listed = ranking.legal[:limit]
    decisions = [[cell(found.plan) for _, cell in family.columns] for found in listed]
    fields = _told_apart([found.plan for found in listed], decisions, ranking.searched)
    measures = MEASURES if len(ranking.shapes) == 1 else MEASURES_OF_SEVERAL
    rows = [["", *(name for name, _ in family.columns), *fields, *measures]]
    for place, (found, cells) in enumerate(zip(listed, decisions, strict=True), 1):
        values = field_values(found.plan)
        own = [_written(values[path]) for path in fields]
        rows.append([str(place), *cells, *own, *_measures(ranking, found)])
    total = f"{count} legal configurations of {count + ranking.refusals} for {_purpose(ranking)}"
    legends = (LEGEND,) if len(ranking.shapes) == 1 else (LEGEND_OF_SEVERAL, LEGEND)
    varying, shared = _divided(rows, kept=len(measures))
    return "\n".join(
        [*_folded(total), *_aligned(varying), *_folded(shared), *_folded(family.legend), *legends]
    )


def explanation(ranking: Ranking) -> str:
    """Return why the other configurations are not planned, group by group."""
    lost = _paragraph(f"{len(ranking.legal) - 1} legal ones cost more; what decides", ranking.lost)
    refused = _paragraph(
        f"{ranking.refusals} are refused; each counts under every rule that refuses it", ranking.refused
    )
    return "\n".join([*lost, "", *refused])


def _divided(rows: Sequence[Sequence[str]], kept: int) -> tuple[list[list[str]], str]:
    """Return rows without the columns in which all candidates are alike, and a line with those columns.

    The first row has the names. The first two columns and the last `kept` ones stay in any case.
    """
    places = range(2, len(rows[0]) - kept)
    alike = [i for i in places if len(rows) > 2 and len({row[i] for row in rows[1:]}) == 1]
    varying = [[cell for i, cell in enumerate(row) if i not in alike] for row in rows]
    return varying, "each has " + ", ".join(f"{rows[0][i]} {rows[1][i]}" for i in alike) if alike else ""


def _told_apart(
    plans: Sequence[Kernel], decisions: Sequence[Sequence[str]], searched: Iterable[str]
) -> list[str]:
    """Return the fields with a column: each that the spec searches, and each in which equal rows differ."""
    alike: dict[tuple[str, ...], list[dict[str, int | str | None]]] = defaultdict(list)
    for plan, cells in zip(plans, decisions, strict=True):
        alike[tuple(cells)].append(field_values(plan))
    chosen = dict.fromkeys(path for path in searched if path in field_values(plans[0]))
    for group in alike.values():
        chosen |= dict.fromkeys(path for path in group[0] if len({each[path] for each in group}) > 1)
    return list(chosen)


def _written(value: int | str | None) -> str:
    return "-" if value is None else str(value)


def _purpose(ranking: Ranking) -> str:
    """Return the problems that the candidates are ranked for, in words."""
    if len(ranking.shapes) == 1:
        return " x ".join(map(str, ranking.shapes[0]))
    rows = dict.fromkeys(str(m) for m, _, _ in ranking.shapes)
    others = dict.fromkeys(f"{n} x {k}" for _, n, k in ranking.shapes)
    of_others = f", each with {' and '.join(others)}" if len(others) > 1 else ""
    return f"{ranking.request.ranges}; what decides: M = {', '.join(rows)}{of_others}"


def _measures(ranking: Ranking, candidate: Candidate) -> list[str]:
    """Return a candidate's cells after its decisions, in the order of `MEASURES` or `MEASURES_OF_SEVERAL`."""
    winner = ranking.legal[0]
    slower = candidate.cost[0] / winner.cost[0] - 1
    share = f"{slower:.{int(slower < 0.1)}%}"  # a tenth of a per cent decides among the best alone
    decided = "" if candidate is winner else f"{share} {candidate.lost_by(winner)[0]}"
    if len(ranking.shapes) == 1:
        (shape,), (found,) = ranking.shapes, candidate.estimates
        figures = (candidate.plan.waves(shape), found.l2_bytes / 1e9)
        return [*(f"{each:.2f}" for each in figures), f"{found.seconds * 1e6:.1f}", decided]
    over, worst = candidate.over(ranking.best), candidate.worst_against(ranking.best)
    ranges = ranking.request.ranges
    only_m = ranges is not None and len(set(ranges.n)) == len(set(ranges.k)) == 1
    at = f"M = {ranking.shapes[worst][0]}" if only_m else shape_text(ranking.shapes[worst])
    return [f"{geometric_mean(over):.3f}", f"{over[worst]:.3f}", at, decided]


# --- text


def _folded(text: str) -> list[str]:
    """Return text in lines of a terminal's width."""
    return textwrap.wrap(text, TEXT_WIDTH, subsequent_indent="  ")


def _paragraph(title: str, groups: Sequence[Group]) -> Iterator[str]:
    """Yield a title and, below it, a line for each group, its example folded to a terminal's width."""
    yield title if groups else f"{title}: none"
    widest = max((len(group.reason) for group in groups), default=0)
    for group in groups:
        head = f"  {group.reason:<{widest}} {group.count:>5}  "
        text = f"{group.example}: {group.detail}"
        yield textwrap.fill(text, TEXT_WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines, with each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = {i for i, name in enumerate(rows[0]) if name in WORDS}
    for row in rows:
        cells = (
            cell.ljust(width) if i in words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield " ".join(cells).rstrip()
