"""Draw docs/architecture.svg from the imports of the files of gemmgen and gluonsim.

``python docs/architecture.py`` rewrites the picture; a test fails while it is not what this would draw. What
is imported stands above what imports it. An arrow leads from a part, which may be gluonsim as a whole, to one
that builds on it; those that follow from others are left out, as are gemmgen's root and ``__main__``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
PACKAGE = "gemmgen"
PACKAGES = (PACKAGE, "gluonsim")
"""In the wheel; each but the first one is one part."""
LEFT_OUT = frozenset({PACKAGE, "__main__"})

Graph = dict[str, frozenset[str]]
"""What each node imports."""

# --- the imports


def files(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of the packages by the dotted names of their modules."""
    named: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports(root: Path = ROOT) -> Graph:
    """Return what each module imports of the packages, also for types alone and inside of functions."""
    named = files(root)
    return {
        name: frozenset(target for target in _imported(name, path, named) if target != name)
        for name, path in named.items()
    }


def _imported(name: str, path: Path, named: Mapping[str, Path]) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            candidates = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join((*base, *filter(None, [node.module])))
            below = [f"{source}.{alias.name}" for alias in node.names]
            candidates = [target if target in named else source for target in below]
        else:
            continue
        yield from (target for target in candidates if target in named)


def circles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return each set of modules that can only be imported together, sorted."""
    reached = {name: _reached(graph, name) for name in graph}
    found = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(names) for names in sorted(found)]


def _reached(graph: Mapping[str, frozenset[str]], start: str) -> set[str]:
    """Return what a node imports, and what that imports."""
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


def parts(graph: Mapping[str, frozenset[str]]) -> Graph:
    """Return the same between parts: the directories of gemmgen, the files beside them, and gluonsim."""
    names = {_part(name) for name in graph} - LEFT_OUT
    return {
        name: frozenset(
            part
            for module, targets in graph.items()
            if _part(module) == name
            for part in map(_part, targets)
            if part in names and part != name
        )
        for name in sorted(names)
    }


def _part(module: str) -> str:
    package, *below = module.split(".")
    return below[0] if package == PACKAGE and below else package


def reduced(graph: Graph) -> Graph:
    """Return a graph without circles, less the imports that follow from others."""
    return {
        name: targets - frozenset[str]().union(*(_reached(graph, target) for target in targets))
        for name, targets in graph.items()
    }


# --- where each part stands


@dataclass
class Box:
    """A part in its row; or a place where an arrow passes a row, which has no text."""

    name: str
    lines: tuple[str, ...]
    """What it is for."""
    width: float
    height: float
    left: float = 0
    top: float = 0

    @property
    def middle(self) -> float:
        """The column of its centre."""
        return self.left + self.width / 2


WIDTH, MARGIN, GAP, ROW_GAP, PADDING = 880, 16, 14, 40, 12
LINE_HEIGHT, LINES, COLUMNS = 14, 3, 27
LANE = 10
"""Room for an arrow that passes a row."""


def rows(graph: Graph) -> list[list[str]]:
    """Return the parts in rows: each below all that it imports, and no further than need be."""
    users: Graph = {name: frozenset(user for user in graph if name in graph[user]) for name in graph}
    depth: dict[str, int] = {}

    def place(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max(map(place, graph[name]), default=-1)
        return depth[name]

    for name in graph:
        place(name)
    for name in sorted(graph, key=lambda name: -depth[name]):
        if users[name] and len(users[name]) >= len(graph[name]):  # nearer to those that use it
            depth[name] = min(depth[user] for user in users[name]) - 1
    levels = sorted(set(depth.values()))
    return [[name for name in graph if depth[name] == level] for level in levels]


def purpose(path: Path) -> str:
    """Return the first clauses of a module's docstring: as many as a box has room for."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.split("\n\n")[0].split()).replace("``", "")
    clauses = re.split(r"(?<=[:;,.]) ", sentence)
    fitting = [clauses[:count] for count in range(len(clauses), 1, -1)]
    chosen = next((words for words in fitting if len(wrap(" ".join(words), COLUMNS)) <= LINES), clauses[:1])
    return " ".join(chosen).rstrip(".,:;")


def _box(name: str, root: Path) -> Box:
    package = (root / name if name in PACKAGES else root / PACKAGE / name) / "__init__.py"
    if package.exists():
        lines = tuple(wrap(purpose(package), COLUMNS))
        widest = max([len(name) * 8.6, *(len(line) * 5.7 for line in lines)])
        return Box(name, lines, max(118, widest + 2 * PADDING), 30 + LINE_HEIGHT * len(lines))
    return Box(name, (), max(76, len(name) * 7.4 + 2 * PADDING), 28)


@dataclass
class Layout:
    """The rows of boxes from top to bottom, and each arrow as the boxes that it goes through."""

    rows: list[list[Box]]
    arrows: list[list[Box]]
    height: float


def layout(root: Path = ROOT) -> Layout:
    """Return where each part stands and each arrow goes."""
    graph = parts(imports(root))
    if found := circles(graph):
        raise ValueError(f"the parts import each other in circles: {found}")
    graph = reduced(graph)
    named = rows(graph)
    boxes = [[_box(name, root) for name in row] for row in named]
    level = {name: index for index, row in enumerate(named) for name in row}
    by_name = {box.name: box for row in boxes for box in row}
    arrows: list[list[Box]] = []
    for user in graph:
        for source in sorted(graph[user]):
            lanes = [Box("", (), LANE, 0) for _ in range(level[source] + 1, level[user])]
            for index, lane in enumerate(lanes, start=level[source] + 1):
                boxes[index].append(lane)
            arrows.append([by_name[source], *lanes, by_name[user]])
    _order(boxes, arrows)
    _straighten(boxes, arrows)
    top: float = MARGIN
    for row in boxes:
        height = max(box.height for box in row)
        for box in row:
            box.height = box.height or height
            box.top = top + (height - box.height) / 2
        top += height + ROW_GAP
    return Layout(boxes, arrows, top - ROW_GAP + MARGIN)


def _neighbours(arrows: list[list[Box]]) -> dict[int, tuple[list[Box], list[Box]]]:
    """Return the boxes above and below each box that its arrows come from and go to."""
    found: dict[int, tuple[list[Box], list[Box]]] = {}
    for arrow in arrows:
        for above, below in pairwise(arrow):
            found.setdefault(id(below), ([], []))[0].append(above)
            found.setdefault(id(above), ([], []))[1].append(below)
    return found


def _spread(row: list[Box]) -> None:
    """Set a row's boxes side by side, in the middle of the picture."""
    left = (WIDTH - sum(box.width + GAP for box in row) + GAP) / 2
    for box in row:
        box.left = left
        left += box.width + GAP


def _order(boxes: list[list[Box]], arrows: list[list[Box]]) -> None:
    """Order each row so that few arrows cross: of the orders that are tried, the one with the fewest."""
    near = _neighbours(arrows)
    for row in boxes:
        _spread(row)
    best = [list(row) for row in boxes]
    fewest = _crossings(boxes, arrows)
    for turn in range(24):
        down = turn % 2 == 0
        for row in boxes if down else boxes[::-1]:
            wanted = {
                id(box): _mean((other.middle for other in near.get(id(box), ([], []))[0 if down else 1]), box)
                for box in row
            }
            row.sort(key=lambda box: wanted[id(box)])
            _spread(row)
        if (crossed := _crossings(boxes, arrows)) < fewest:
            fewest, best = crossed, [list(row) for row in boxes]
    for row, chosen in zip(boxes, best, strict=True):
        row[:] = chosen
        _spread(row)


def _mean(columns: Iterable[float], box: Box) -> float:
    found = list(columns)
    return sum(found) / len(found) if found else box.middle


def _crossings(boxes: list[list[Box]], arrows: list[list[Box]]) -> float:
    """Return how many arrows cross, and between equals how long they are."""
    position = {id(box): (level, index) for level, row in enumerate(boxes) for index, box in enumerate(row)}
    steps = [(position[id(a)], position[id(b)]) for arrow in arrows for a, b in pairwise(arrow)]
    crossed = sum(
        (a[1] - c[1]) * (b[1] - d[1]) < 0
        for index, (a, b) in enumerate(steps)
        for c, d in steps[:index]
        if a[0] == c[0]
    )
    length = sum(abs(a.middle - b.middle) for arrow in arrows for a, b in pairwise(arrow))
    return crossed + length / 1e6


def _straighten(boxes: list[list[Box]], arrows: list[list[Box]]) -> None:
    """Move boxes towards those that they are joined to, as far as those beside them let them."""
    near = _neighbours(arrows)
    for _ in range(60):
        for row in boxes:
            for index, box in enumerate(row):
                above, below = near.get(id(box), ([], []))
                wanted = _mean((other.middle for other in above + below), box) - box.width / 2
                least = row[index - 1].left + row[index - 1].width + GAP if index else MARGIN
                most = (row[index + 1].left - GAP if index + 1 < len(row) else WIDTH - MARGIN) - box.width
                box.left = max(least, min(most, wanted))


# --- the picture

STYLE = """
  text { font-family: 'Segoe UI', Helvetica, Arial, sans-serif; text-anchor: middle; fill: #1f2328 }
  .name { font-size: 14px; font-weight: 600 }
  .line { font-size: 11px; fill: #59636e }
  .file { font-size: 12px }
  .legend { text-anchor: start }
  .box { fill: #eef4ff; stroke: #7a9fd6 }
  .pill { fill: #f6f8fa; stroke: #c3cad2 }
  .arrow { fill: none; stroke: #8c959f; stroke-width: 1.3 }
  .head { fill: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .line { fill: #9198a1 }
    .box { fill: #16263f; stroke: #4a76b8 }
    .pill { fill: #1b2129; stroke: #454c56 }
    .arrow { stroke: #6e7681 }
    .head { fill: #6e7681 }
  }
"""


LEGEND = "An arrow leads to what builds on a part."
HEAD = """<defs>
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path class="head" d="M0 0 8 4 0 8z"/>
</marker>
</defs>"""


def drawn(root: Path = ROOT) -> str:
    """Return the picture."""
    found = layout(root)
    packages = [box.name for row in found.rows for box in row if box.lines]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {found.height:g}" role="img">',
        f"<title>The parts of gemmgen, each below what it builds on: {', '.join(packages)}</title>",
        f"<style>{STYLE}</style>",
        HEAD,
    ]
    lines += [_arrow(points) for points in _paths(found)]
    lines += [line for row in found.rows for box in row if box.name for line in _drawn_box(box)]
    lines.append(f'<text class="line legend" x="{MARGIN}" y="{found.height - MARGIN:g}">{LEGEND}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _paths(found: Layout) -> Iterator[list[tuple[float, float]]]:
    """Yield the points that each arrow goes through, its ends side by side with those of others."""
    leaving = _ends(found.arrows, 0, 1)
    arriving = _ends(found.arrows, -1, -2)
    for index, arrow in enumerate(found.arrows):
        points = [(leaving[index], arrow[0].top + arrow[0].height)]
        for lane in arrow[1:-1]:
            points += [(lane.middle, lane.top), (lane.middle, lane.top + lane.height)]
        yield [*points, (arriving[index], arrow[-1].top)]


def _ends(arrows: list[list[Box]], end: int, beside: int) -> dict[int, float]:
    """Return the column at which each arrow leaves or meets its box, in the order of where it goes."""
    columns: dict[int, float] = {}
    for box in {id(arrow[end]): arrow[end] for arrow in arrows}.values():
        at_box = [index for index, arrow in enumerate(arrows) if arrow[end] is box]
        at_box.sort(key=lambda index: arrows[index][beside].middle)
        room = min(18, (box.width - 24) / max(1, len(at_box) - 1))
        for position, index in enumerate(at_box):
            columns[index] = box.middle + (position - (len(at_box) - 1) / 2) * room
    return columns


def _arrow(points: list[tuple[float, float]]) -> str:
    (x, y), *others = points
    path = [f"M{x:.1f} {y:.1f}"]
    for next_x, next_y in others:
        half = (y + next_y) / 2
        path.append(f"C{x:.1f} {half:.1f} {next_x:.1f} {half:.1f} {next_x:.1f} {next_y:.1f}")
        x, y = next_x, next_y
    return f'<path class="arrow" d="{" ".join(path)}" marker-end="url(#head)"/>'


def _drawn_box(box: Box) -> Iterator[str]:
    kind = "box" if box.lines else "pill"
    size = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{8 if box.lines else 14}"'
    yield f'<rect class="{kind}" x="{box.left:.1f}" y="{box.top:.1f}" {size}/>'
    style = "name" if box.lines else "file"
    yield f'<text class="{style}" x="{box.middle:.1f}" y="{box.top + 18.5:.1f}">{escape(box.name)}</text>'
    for index, line in enumerate(box.lines):
        row = box.top + 35 + LINE_HEIGHT * index
        yield f'<text class="line" x="{box.middle:.1f}" y="{row:.1f}">{escape(line)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
