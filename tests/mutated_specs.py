"""Spec files that a keyboard, a merge tool or a script has spoilt, and what the command line makes of them.

``python tests/mutated_specs.py --files 100000 --seed 0 --record FILE`` makes so many files and builds each
without the compiler, a process for a thousand of them. Of every file it is watched that the command ends
with 0 or 1 and words, its process takes at most `MOST_BYTES`, and that nothing outside the chosen folder is
written: Python's audit events tell of every file that is opened to be written, made, renamed or removed.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import random
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast
from unittest import mock

from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
RIGHT = tuple(sorted([*ROOT.glob("specs/*.yaml"), *ROOT.glob("tests/pairs/specs/*.yaml")]))
WRONG = tuple(sorted(ROOT.glob("tests/invalid/*/*.yaml")))
"""What is mutated: specs that are right, and those that are wrong already."""

MOST_BYTES = 500 * 10**6
"""Of memory of a process in which a thousand files were built, one after the other."""
FILES_PER_PROCESS = 1000
OUT = "out"
"""The chosen folder."""

DIAGNOSTIC = re.compile(r"[^\n]+?(:\d+:\d+)?: (error|warning)\[[a-z0-9-]+\][^\n]*: [^\n]+")
BESIDE = re.compile(r"building [^\n]*|\s*\d+ \| [^\n]*|\s+\|\s+\^|[^\n]+: note: [^\n]+")
"""Other lines on stderr: progress, the line of a file and its caret, how many diagnostics are not shown."""


# --- what is done to a file

BYTES = (
    *(bytes([value]) for value in b"-?:,[]{}#&*!|>'\"%@`=~.\\ \n\r\t\0\x7f\x80\xc3\xff0129aAeE_/"),
    *(text.encode() for text in ("---\n", "...\n", "&a ", "*a", "!!int ", "%YAML 1.1", "<<: ", "? ", "|2-")),
    b"\n- ",
    *(text.encode() for text in ("\u2028", "\u0085", "\ufeff", "矩阵", "é", "\U0001f600")),
    b"\\ud800", b"${x}", b"{{ x }}",
    b"4.0", b"1e9", b"0x10", b".inf", b".nan", b"-1", b"2147483648", b"9" * 400, b"yes", b"null",
)  # fmt: skip
"""What is put into the text of a file."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 7, 64, 100, 128, 255, 256, 2**31 - 1, 2**31, 2**63, 10**30,
    0.5, 1.0, -0.0, 1e300,
    "", "a", "k", "mn", "bf16", "e4m3", "fp64", "h100", "b200", "a100", "none", "row", "column",
    "relu", "gelu", "auto",
    "x" * 300, "../../etc/passwd", "/tmp/x", "a\nb", "__import__('os')", "{{ 7 * 7 }}", "\U0001d7db",
    [], {}, [[]], [{}], [1, 2, 3], [[1, 2, 3]], [[1, 1, 1], [7, 9, 11]], {"m": 1},
    {"": ""}, {"m": {"m": {"m": 1}}},
    [1] * 200, ["relu"] * 20, {"leaky_relu": {"slope": 1}}, {"format": "mxfp8"}, {"dtype": "e2m1"},
)  # fmt: skip
"""What a value of a spec is replaced by."""


def mutated_text(data: bytes, rng: random.Random) -> bytes:
    """Return a file with some of its bytes or lines changed, lost, doubled or moved."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(9):
            case 0 | 1 | 2:
                data = data[:at] + rng.choice(BYTES) + data[at:]
            case 3:
                data = data[:at] + rng.choice(BYTES) + data[at + rng.randrange(1, 6) :]
            case 4:
                data = data[:at] + data[at + rng.randrange(1, 20) :]
            case 5:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 6:
                lines = data.splitlines(keepends=True) or [b""]
                lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
                data = b"".join(lines)
            case 7:
                lines = data.splitlines(keepends=True) or [b""]
                line = rng.randrange(len(lines))
                lines[line] = rng.choice((b"", b" ", b"\t", b"    ", b"- ")) + lines[line].lstrip()
                data = b"".join(lines)
            case _:
                data = data[:at] if rng.random() < 0.3 else data.replace(*rng.choice(EDITS))
    if rng.random() < 0.002:
        data *= rng.choice((50, 5000))
    return data


EDITS = (
    (b": ", b":"), (b"\n", b"\r\n"), (b"  ", b"\t"), (b"{", b"["), (b"}", b""), (b",", b";"), (b"k", b"K"),
    (b"bf16", b"fp16"), (b"128", b"192"), (b"64", b"6 4"), (b"h100", b"H100"),
    (b"row", b"row/col"), (b"m:", b"M:"),
)  # fmt: skip


def mutated_tree(data: bytes, rng: random.Random) -> bytes:
    """Return a file with other values or keys, as JSON, which is YAML; of no tree, with other text."""
    tree = copy.deepcopy(_tree(data))
    if tree is None:
        return mutated_text(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            break
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0 | 1 | 2:
                holder[key] = _other(holder[key], key, rng)
            case 3:
                del holder[key]
            case 4 if isinstance(holder, dict):
                holder[rng.choice(KEYS)] = holder[key]
            case _:
                other, its = rng.choice(places)
                try:
                    holder[key] = copy.deepcopy(other[its])
                except (KeyError, IndexError):  # it was taken away with what held it
                    holder[key] = None
    text = json.dumps(tree, indent=rng.choice((None, 1)), ensure_ascii=False, default=str)
    return text.replace("NaN", ".nan").replace("Infinity", ".inf").encode("utf-8", "replace")


@cache
def _tree(data: bytes) -> object:
    """Return what a file holds; None of one that is no YAML, or whose aliases could make it any size."""
    if b"&" in data:
        return None
    try:
        return cast(Any, YAML(typ="safe", pure=True)).load(data.decode())
    except Exception:
        return None


KEYS = (
    "title", "target", "operands", "tile", "m", "n", "k", "M", "batch", "stages", "search",
    "ops", "alpha", "scale",
    "tile.n", "schedule", "order", "mma", "promote_k", "splits", "problem", "dtype", "",
    "x" * 100, "1", "矩阵",
)  # fmt: skip
"""What a value is named by another time."""


def _other(value: object, key: object, rng: random.Random) -> object:
    """Return another value: one that right specs have under this key, of a number one beside it, or any."""
    chance = rng.random()
    if chance < 0.7 and key in _known():
        return copy.deepcopy(rng.choice(_known()[key]))
    if chance < 0.85 and isinstance(value, int) and not isinstance(value, bool):
        return rng.choice((value * 2, value // 2, value + 1, value - 1, value * 3, value + 8, -value))
    return copy.deepcopy(rng.choice(VALUES))


def _places(tree: object) -> Iterator[tuple[Any, Any]]:
    """Yield every value's holder and its key or index there."""
    items: Sequence[tuple[object, object]] = ()
    if isinstance(tree, dict):
        items = list(cast("dict[object, object]", tree).items())
    elif isinstance(tree, list):
        items = list(enumerate(cast("list[object]", tree)))
    for key, value in items:
        yield tree, key
        yield from _places(value)


def mutant(seed: int, number: int) -> bytes:
    """Return the bytes of a file of a seed."""
    rng = random.Random(f"{seed} {number}")
    data = _source(rng.choice(RIGHT if rng.random() < 0.8 else WRONG))
    return (mutated_text if rng.random() < 0.5 else mutated_tree)(data, rng)


@cache
def _source(path: Path) -> bytes:
    return path.read_bytes()


@cache
def _known() -> dict[object, list[object]]:
    """Return what the right specs have under each key."""
    known: dict[object, list[object]] = {}
    for path in RIGHT:
        for holder, key in _places(_tree(_source(path))):
            values = known.setdefault(key, [])
            if holder[key] not in values:
                values.append(holder[key])
    return known


# --- what the command line makes of it


@dataclass
class Tally:
    """What was seen of files that were built."""

    files: int = 0
    accepted: int = 0
    codes: Counter[str] = field(default_factory=Counter[str])
    """Of refused files: those that had a diagnostic of each code."""
    most_bytes: int = 0
    faults: list[str] = field(default_factory=list[str])
    """What must not be, each with the number of its file."""

    def add(self, other: Tally) -> None:
        """Count what another process has seen."""
        self.files += other.files
        self.accepted += other.accepted
        self.codes += other.codes
        self.most_bytes = max(self.most_bytes, other.most_bytes)
        self.faults += other.faults


WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PLACES = {
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rmdir": 1,
    "os.rename": 2,
    "os.link": 2,
    "os.symlink": 2,
    "os.truncate": 1,
}
"""Audit events that change a directory, each with how many of its first arguments are paths."""


class Watch:
    """Tells what this process writes outside a folder, but for the bytecode of what it imports."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.outside: list[str] = []
        sys.addaudithook(self._seen)

    def _seen(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open":
            name, mode, flags = arguments
            writes = bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool((flags or 0) & WRITING)
            paths = [name] if writes else []
        else:
            paths = list(arguments[: PLACES.get(event, 0)])
        for path in paths:
            if isinstance(path, str | bytes | Path):
                place = Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 - links are not followed
                if "__pycache__" in place.parts:
                    continue
                if place != self.folder and self.folder not in place.parents:
                    self.outside.append(f"{event} {place}")


def build(numbers: range, seed: int, folder: Path, watch: Watch) -> Tally:
    """Build files of a seed in a folder, which they are written to; return what was seen."""
    tally = Tally()
    for number in numbers:
        path = folder / f"spec_{number}.yaml"
        path.write_bytes(mutant(seed, number))
        fault, code, errors = _build(path, watch)
        tally.files += 1
        tally.accepted += code == 0
        tally.codes.update(set(re.findall(r"(?:error|warning)\[([a-z0-9-]+)\]", errors)))
        if fault:
            tally.faults.append(f"file {number} of seed {seed}: {fault}")
        path.unlink()
    tally.most_bytes = _most_bytes()
    if tally.most_bytes > MOST_BYTES:
        tally.faults.append(f"files {numbers.start} to {numbers.stop - 1}: {tally.most_bytes:,} bytes")
    return tally


def _most_bytes() -> int:
    """Return the most memory that this process has had; `ru_maxrss` is that of its parent too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def _build(path: Path, watch: Watch) -> tuple[str, object, str]:
    """Build a file beside it; return what must not be, the exit code, and what stderr has."""
    from gemmgen.cli import main

    out, errors, code, fault = io.StringIO(), io.StringIO(), None, ""
    arguments = ["gemmgen", "build", "--no-lower", str(path), "--out", str(path.parent / OUT)]
    watch.folder = path.parent / OUT
    try:
        with mock.patch.object(sys, "argv", arguments), redirect_stdout(out), redirect_stderr(errors):
            main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        fault = traceback.format_exc(limit=-3)
    finally:
        watch.folder = None
    fault = fault or _fault(code, out.getvalue(), errors.getvalue()) or "".join(watch.outside)
    watch.outside.clear()
    return fault, code, errors.getvalue()


def _fault(code: object, out: str, errors: str) -> str:
    """Return what is wrong with what a command has said."""
    if code not in (0, 1):
        return f"exit code {code}"
    lines = [line for line in errors.splitlines() if line and not BESIDE.fullmatch(line)]
    if wrong := [line for line in lines if not DIAGNOSTIC.fullmatch(line)]:
        return f"not a diagnostic: {wrong[0][:200]}"
    if (code == 1) != bool(lines):
        return f"exit code {code} with {len(lines)} diagnostics"
    if ("wrote " in out) != (code == 0):
        return f"exit code {code}, and stdout is {out[-100:]!r}"
    return ""


def _built(numbers: range, seed: int) -> Tally:
    """In a process of its own: build some files in a new folder, which goes."""
    with tempfile.TemporaryDirectory(prefix="mutated-specs-") as folder:
        return build(numbers, seed, Path(folder).resolve(), Watch())


def build_all(files: int, seed: int, processes: int, tell: Callable[[Tally], None] = lambda _: None) -> Tally:
    """Build so many files of a seed, a process for some of them; return what was seen of all."""
    tally = Tally()
    parts = [
        range(first, min(first + FILES_PER_PROCESS, files)) for first in range(0, files, FILES_PER_PROCESS)
    ]
    context = get_context("spawn")  # a process whose memory is its own
    with ProcessPoolExecutor(processes, context, max_tasks_per_child=1) as pool:
        for part in pool.map(_built, parts, [seed] * len(parts)):
            tally.add(part)
            tell(tally)
    return tally


def record_of(tally: Tally, seed: int) -> dict[str, object]:
    """Return what a record says of a run."""
    return {
        "seed": seed,
        "files": tally.files,
        "accepted": tally.accepted,
        "refused": tally.files - tally.accepted,
        "faults": tally.faults,
        "most_bytes": tally.most_bytes,
        "codes": dict(tally.codes.most_common()),
    }


def main() -> None:
    """Build the files that are asked for, and write the record of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--record", type=Path)
    chosen = parser.parse_args()

    def tell(tally: Tally) -> None:
        sys.stderr.write(f"{tally.files:,} files, {len(tally.faults)} faults\n")
        if chosen.record:
            chosen.record.write_text(json.dumps(record_of(tally, chosen.seed), indent=2) + "\n")

    tally = build_all(chosen.files, chosen.seed, chosen.processes, tell)
    sys.stdout.write(json.dumps(record_of(tally, chosen.seed), indent=2) + "\n")
    sys.exit(bool(tally.faults))


if __name__ == "__main__":
    main()
