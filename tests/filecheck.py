"""A small FileCheck: directives, matched in order against the lines of a text.

| directive | holds where the pattern matches |
|---|---|
| `CHECK: pattern` | somewhere behind the previous match |
| `CHECK-NEXT: pattern` | on the line after the previous match's |
| `CHECK-COUNT-4: pattern` | four times, each like `CHECK` |
| `CHECK-NOT: pattern` | nowhere between the matches before and after it, or the ends of the text |

A pattern is literal text, in which a blank stands for any blanks, with three exceptions: `{{...}}` holds a
regular expression, `[[NAME:...]]` one whose match is kept under a name, and `[[NAME]]` stands for what was
kept or is given by the caller. All other lines are comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTIVE = re.compile(r"\s*CHECK(?:-(?P<kind>[A-Z]+(?:-(?P<count>\d+))?))?:(?P<pattern>.*)")
TOKEN = re.compile(r"\{\{(?P<regex>.+?)\}\}|\[\[(?P<name>\w+)(?::(?P<kept>.+?)\]\](?!\])|\]\])")
CONTEXT_LINES = 8


@dataclass(frozen=True)
class Directive:
    """One line of a file of directives."""

    place: str
    """File and line."""
    kind: str
    """`CHECK`, `NEXT` or `NOT`."""
    pattern: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.place}: CHECK{'' if self.kind == 'CHECK' else '-' + self.kind}: {self.pattern}"

    def compile(self, names: Mapping[str, str]) -> re.Pattern[str]:
        """Return the pattern with all names replaced that are known by now."""
        regex, end = "", 0
        for token in TOKEN.finditer(self.pattern):
            regex += _literal(self.pattern[end : token.start()])
            end = token.end()
            name, kept = token["name"], token["kept"]
            if not name:
                regex += f"(?:{token['regex']})"
            elif kept:
                regex += f"(?P<{name}>{kept})"
            elif name in names:
                regex += re.escape(names[name])
            else:
                raise ValueError(f"{self}: [[{name}]] has no value")
        return re.compile(regex + _literal(self.pattern[end:]))


def _literal(text: str) -> str:
    return r"[ \t]+".join(re.escape(word) for word in re.split(r"[ \t]+", text))


def read_directives(text: str, name: str) -> list[Directive]:
    """Return the directives of a text that diagnostics call `name`."""
    directives: list[Directive] = []
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{name}:{number}"
        if not (found := DIRECTIVE.fullmatch(line)):
            continue
        kind, count = found["kind"] or "CHECK", int(found["count"] or 1)
        if found["count"]:
            kind = kind.removesuffix(f"-{found['count']}")
        if (kind not in ("CHECK", "NEXT", "NOT", "COUNT")) or (kind == "COUNT") != bool(found["count"]):
            raise ValueError(f"{place}: there is no directive CHECK-{found['kind']}")
        pattern = found["pattern"].strip()
        if not pattern:
            raise ValueError(f"{place}: the pattern is empty")
        if kind == "NEXT" and not any(directive.kind != "NOT" for directive in directives):
            raise ValueError(f"{place}: CHECK-NEXT needs a CHECK before it")
        directives.append(Directive(place, "CHECK" if kind == "COUNT" else kind, pattern, count))
    if not directives:
        raise ValueError(f"{name}: holds no directives")
    return directives


def filecheck_files(text: str, paths: Iterable[Path], values: Mapping[str, object] | None = None) -> None:
    """Match the directives of several files, one file after the other, as if they were one."""
    directives = [directive for path in paths for directive in read_directives(path.read_text(), path.name)]
    filecheck(text, directives, values)


def filecheck(text: str, directives: Iterable[Directive], values: Mapping[str, object] | None = None) -> None:
    """Match directives in order against a text; `values` are names that patterns can use.

    Raises:
        AssertionError: A directive does not hold; says which one, and shows the text where it should match.
    """
    matcher = _Matcher(text, {name: str(value) for name, value in (values or {}).items()})
    for directive in directives:
        if directive.kind == "NOT":
            matcher.forbid(directive)
        else:
            for _ in range(directive.count):
                matcher.advance(directive)
    matcher.finish()


class _Matcher:
    """A position in a text: everything before the end of the last match is done with."""

    def __init__(self, text: str, names: dict[str, str]) -> None:
        self._text = text
        self._names = names
        self._position = 0
        self._forbidden: list[Directive] = []

    def forbid(self, directive: Directive) -> None:
        """Remember what must not match before the next positive directive does."""
        self._forbidden.append(directive)

    def advance(self, directive: Directive) -> None:
        """Move behind the next match of a positive directive."""
        pattern = directive.compile(self._names)
        start, end = self._position, len(self._text)
        if directive.kind == "NEXT":
            start = self._line_end(self._position) + 1
            end = self._line_end(start)
        match = pattern.search(self._text, min(start, len(self._text)), end)
        if match is None:
            raise AssertionError(self._mismatch(directive, pattern))
        self._refuse_forbidden(match.start())
        self._names |= match.groupdict()
        self._position = match.end()

    def finish(self) -> None:
        """Hold the last negative directives against the rest of the text."""
        self._refuse_forbidden(len(self._text))

    def _refuse_forbidden(self, end: int) -> None:
        for directive in self._forbidden:
            if match := directive.compile(self._names).search(self._text, self._position, end):
                line = self._line_number(match.start())
                raise AssertionError(f"{directive}\nmatches line {line}:\n{self._show(line, 1)}")
        self._forbidden.clear()

    def _mismatch(self, directive: Directive, pattern: re.Pattern[str]) -> str:
        line = self._line_number(self._position)
        where = f"on line {line + 1}" if directive.kind == "NEXT" else f"from line {line} on"
        elsewhere = ""
        if directive.kind == "NEXT" and (later := pattern.search(self._text, self._position)):
            elsewhere = f"\nIt matches later, on line {self._line_number(later.start())}."
        elif earlier := pattern.search(self._text, 0, self._position):
            elsewhere = f"\nIt matches earlier, on line {self._line_number(earlier.start())}: out of order."
        return f"{directive}\nmatches nothing {where}:\n{self._show(line, CONTEXT_LINES)}{elsewhere}"

    def _show(self, line: int, count: int) -> str:
        lines = self._text.splitlines()[line - 1 : line - 1 + count]
        return "\n".join(f"{number:6} | {content[:160]}" for number, content in enumerate(lines, start=line))

    def _line_number(self, position: int) -> int:
        return self._text.count("\n", 0, position) + 1

    def _line_end(self, position: int) -> int:
        end = self._text.find("\n", position)
        return len(self._text) if end < 0 else end
