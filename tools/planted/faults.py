"""Faults of one place each, drawn by chance from the templates of kernels and from the planner.

An operator changes one line of a template, or one expression of a file of the planner. None is chosen for
being found: a file is drawn, then an operator that has places in it, then the place.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TEMPLATES: Final = tuple(f"templates/{folder}" for folder in ("shared", "walks", "wgmma", "tcgen05"))
"""Folders of the templates of kernels. Tests of wrappers name their modules, and each run has them."""
PLANNER: Final = (
    "features/block_scales/packed_payloads.py",
    "features/block_scales/scale_payloads.py",
    "plan/epilogue_storage.py",
    "plan/roles.py",
    "plan/sizes.py",
    "plan/stage.py",
    "plan/storage.py",
    "plan/tcgen05/bounds.py",
    "plan/tcgen05/buffers.py",
    "plan/tcgen05/geometry.py",
    "plan/tcgen05/resources.py",
    "plan/wgmma/bounds.py",
    "plan/wgmma/buffers.py",
    "plan/wgmma/geometry.py",
    "plan/wgmma/mma.py",
    "plan/wgmma/payloads.py",
    "plan/wgmma/resources.py",
)
"""Files under gemmgen that compute sizes, buffers, barriers and bounds."""
OF_PLANNER: Final = 4
"""Of ten faults that are drawn, those of the planner."""


@dataclass(frozen=True)
class Fault:
    """A change of one place of a file."""

    file: str
    """Relative to the repository."""
    operator: str
    start: int
    """Of the text that is replaced, in characters from the file's beginning."""
    end: int
    replacement: str

    def planted(self, text: str) -> str:
        """Return the text of the file with the fault."""
        return text[: self.start] + self.replacement + text[self.end :]

    def line(self, text: str) -> int:
        """Return the number of the changed line, from 1."""
        return text.count("\n", 0, self.start) + 1

    def lines(self, text: str) -> tuple[str, str]:
        """Return the changed line of the file's text without and with the fault."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", max(first, self.end - 1))
        after = self.planted(text)
        if self.operator == "delete":
            return text[first:last].strip(), ""
        return text[first:last].strip(), after[first : last + len(after) - len(text)].strip()

    @property
    def in_template(self) -> bool:
        """True if the file is a template, False if it is of the planner."""
        return self.file.startswith("templates/")


def drawn(seed: int) -> Iterator[Fault]:
    """Yield different faults in an order that follows from the seed; four of ten are of the planner."""
    templates = [
        path.relative_to(ROOT).as_posix() for folder in TEMPLATES for path in (ROOT / folder).rglob("*.py.j2")
    ]
    streams = (
        _drawn(sorted(templates), of_template, Random(seed)),
        _drawn([f"gemmgen/{name}" for name in PLANNER], of_planner, Random(seed)),
    )
    number = 0
    while True:
        yield next(streams[number % 10 < OF_PLANNER])
        number += 1


def _drawn(files: Sequence[str], of: Callable[[str, str], list[Fault]], random: Random) -> Iterator[Fault]:
    left: dict[str, dict[str, list[Fault]]] = {}
    for file in files:
        by_operator: dict[str, list[Fault]] = defaultdict(list)
        for fault in of(file, (ROOT / file).read_text(encoding="utf-8")):
            by_operator[fault.operator].append(fault)
        if by_operator:
            left[file] = by_operator
    while left:
        file = random.choice(list(left))
        operator = random.choice(list(left[file]))
        faults = left[file][operator]
        yield faults.pop(random.randrange(len(faults)))
        if not faults:
            del left[file][operator]
        if not left[file]:
            del left[file]


# --- templates: one line of the text of a kernel

EXCHANGED: Final = {
    "sign": ((r" \+ ", " - "), (r" - ", " + ")),
    "product": ((r" \* ", " // "), (r" // ", " * "), (r" % ", " // ")),
    "comparison": (
        (r" < ", " <= "),
        (r" <= ", " < "),
        (r" > ", " >= "),
        (r" >= ", " > "),
        (r" == ", " != "),
        (r" != ", " == "),
    ),
    "name": (
        (r"(?<=_)m\b", "n"),
        (r"(?<=_)n\b", "m"),
        (r"(?<=_)M\b", "N"),
        (r"(?<=_)N\b", "M"),
        (r"\ba(?=_)", "b"),
        (r"\bb(?=_)", "a"),
        (r"_ready\b", "_empty"),
        (r"_empty\b", "_ready"),
        (r"\.first\b", ".end"),
        (r"\.end\b", ".first"),
        (r"\brow\b", "column"),
        (r"\bminimum\b", "maximum"),
        (r"\bmaximum\b", "minimum"),
    ),
    "phase": ((r"(?<=phase)(?=[,)])", " ^ 1"),),
    "index": ((r"(?<=\.index\()[a-z][\w. +%]*(?=\))", "0"),),
    "multicast": ((r", multicast=[\w.]+", ""),),
    "predicate": ((r", (?:pred|mask)=[\w. <&]+(?=[,)])", ""),),
}
"""Patterns of a line, and what stands in place of a match, by operator."""
MOVES: Final = re.compile(
    r"\s*[\w.]*(?:wait|arrive|fence|store|load|commit|expect|copy|sync|init|invalidate|barrier|fill)[\w.]*\(.*\)"
)
"""Statements that wait, arrive, order, load or store."""
CALL: Final = re.compile(r"(?<=[\w])\(([^(){}]+(?:, [^(){}]+)+)\)")
"""The innermost arguments of a call, if there are several."""
NUMBER: Final = re.compile(r"(?<![\w.\"'/])\d+(?![\w.\"'/])")


def of_template(file: str, text: str) -> list[Fault]:
    """Return the faults that operators can make of a template's lines; comments and docstrings have none."""
    found: list[Fault] = []
    start, quoted = 0, False
    for line in text.splitlines(keepends=True):
        quotes = line.count('"""')
        if not quoted and not quotes and not line.lstrip().startswith(("{#", "#", "@")):
            code = line.partition("  #")[0].rstrip("\n")
            found += _of_line(partial(Fault, file), code, start, len(line))
        quoted ^= quotes % 2 == 1
        start += len(line)
    return found


def _of_line(
    fault: Callable[[str, int, int, str], Fault], code: str, start: int, length: int
) -> Iterator[Fault]:
    if MOVES.fullmatch(code):
        yield fault("delete", start, start + length, "")
    for match in NUMBER.finditer(code):
        for other in {int(match[0]) + 1, max(0, int(match[0]) - 1)} - {int(match[0])}:
            yield fault("constant", start + match.start(), start + match.end(), str(other))
    for operator, pairs in EXCHANGED.items():
        for pattern, other in pairs:
            for match in re.finditer(pattern, code):
                yield fault(operator, start + match.start(), start + match.end(), other)
    for match in () if re.search(r"\b(?:def|macro) ", code) else CALL.finditer(code):
        values = match[1].split(", ")
        exchanged = (
            [*values[:i], second, first, *values[i + 2 :]]
            for i, (first, second) in enumerate(pairwise(values))
            if first != second and "=" not in first + second
        )
        for each in (values[:-1], *exchanged):
            yield fault("argument", start + match.start(1), start + match.end(1), ", ".join(each))


# --- the planner: one expression

BINARY: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("sign", "-"),
    ast.Sub: ("sign", "+"),
    ast.Mult: ("product", "//"),
    ast.FloorDiv: ("product", "*"),
    ast.Mod: ("product", "//"),
}
COMPARED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
}
TWINS: Final = tuple(
    twin
    for one, other in (
        ("_m", "_n"),
        ("rows", "columns"),
        ("least", "most"),
        ("max", "min"),
        ("stages", "consumers"),
        ("a", "b"),
    )
    for twin in ((one, other), (other, one))
)
"""Ends of names of one kind."""


def of_planner(file: str, text: str) -> list[Fault]:
    """Return the faults that operators can make of the expressions of a file of Python."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def place(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset

    def exchanged(operator: str, node: ast.expr, other: str) -> Fault:
        return Fault(file, operator, *place(node), other)

    return [
        exchanged(operator, node, other)
        for node in _expressions(ast.parse(text))
        for operator, other in _others(node, lambda each: text[slice(*place(each))])
        if other != text[slice(*place(node))]
    ]


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that are computed: none of annotations, docstrings and formatted texts."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:  # pyright: ignore[reportUnknownVariableType]
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.expr):
                yield child
            yield from _expressions(child)


def _others(node: ast.expr, source: Callable[[ast.expr], str]) -> Iterator[tuple[str, str]]:
    """Yield the operators that fit an expression, each with what stands in its place."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield from (("constant", str(other)) for other in (value + 1, value - 1) if other >= 0)
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            operator, sign = BINARY[type(op)]
            yield operator, f"({source(left)} {sign} {source(right)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
            yield "comparison", f"({source(left)} {COMPARED[type(op)]} {source(right)})"
        case ast.BoolOp(op=op, values=[first, *others]):
            word = " or " if isinstance(op, ast.And) else " and "
            yield "condition", f"({word.join(map(source, (first, *others)))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "condition", f"bool({source(operand)})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "condition", f"({source(orelse)} if {source(test)} else {source(body)})"
        case ast.Call(func=func, args=[first, second, *others], keywords=[]):
            exchanged = ", ".join(map(source, (second, first, *others)))
            yield "argument", f"{source(func)}({exchanged})"
            yield "argument", f"{source(func)}({', '.join(map(source, (first, second, *others)[:-1]))})"
        case ast.Tuple(elts=[_, _, *_] as elements, ctx=ast.Load()):
            left = "".join(f"{source(each)}, " for each in elements[:-1])
            yield "element", f"({left})"
        case ast.Attribute(value=value, attr=name, ctx=ast.Load()):
            for twin in _twins(name):
                yield "name", f"{source(value)}.{twin}"
        case _:
            pass


def _twins(name: str) -> Iterator[str]:
    for one, other in TWINS:
        if name == one or name.endswith(one if one.startswith("_") else f"_{one}"):
            yield name.removesuffix(one) + other
