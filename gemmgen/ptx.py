"""The identity of compiled code: digests of PTX that a refactoring leaves as they are, and the file of them.

A digest is of the normalized PTX, which has no names of registers and labels, no places in the source and no
debug sections. Two kernels with one digest execute the same instructions, so a change of a template that is
meant to keep the code can be checked without a GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from gemmgen import triton_api
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.json_files import encoded, read_json
from gemmgen.kinds import Count, OneLine, Sha256
from gemmgen.lower import Lowered
from gemmgen.product import write_files

_DEBUG_SECTION: Final = re.compile(r"^\s*\.section\s+\.debug", re.MULTILINE)
"""The first line of the debug sections, which end a text."""
_DECLARED: Final = re.compile(r"^\s*\.reg\s+\.\w+\s+%(\w+)<\d+>;", re.MULTILINE)
"""A declaration of the virtual registers with one prefix."""
_LABEL: Final = r"\$L__\w+|\bJTI\d+_\d+\b"
"""Labels of blocks, of line information, and of tables of branch targets, as LLVM names them."""
_COMMENT: Final = re.compile(r"//.*")
_LEFT_OUT: Final = (".loc", ".file", ".reg")
"""Directives without an instruction: places in the source, and how many registers have names."""


def normalized(ptx: str) -> str:
    """Return the code of a PTX text that LLVM wrote, with registers and labels renamed in order of first use.

    Comments, ``.loc``, ``.file``, declarations of registers, labels that nothing jumps to and debug sections
    are left out.
    """
    if debug := _DEBUG_SECTION.search(ptx):
        ptx = ptx[: debug.start()]
    prefixes = sorted({*_DECLARED.findall(ptx)}, key=len, reverse=True)
    lines = [line for raw in ptx.splitlines() if (line := " ".join(_COMMENT.sub("", raw).split()))]
    lines = [line for line in lines if not line.startswith(_LEFT_OUT)]
    targets = {label for line in lines if not line.endswith(":") for label in re.findall(_LABEL, line)}
    code = "\n".join(
        line for line in lines if line[:-1] in targets or not re.fullmatch(rf"(?:{_LABEL}):", line)
    )
    names: dict[str, str] = {}
    counts: dict[str, int] = {}

    def renamed(found: re.Match[str]) -> str:
        if found[0] not in names:
            kind = f"%{found['prefix']}" if found["prefix"] else "$L"
            names[found[0]] = f"{kind}{counts.get(kind, 0)}"
            counts[kind] = counts.get(kind, 0) + 1
        return names[found[0]]

    register = rf"%(?P<prefix>{'|'.join(prefixes)})\d+\b" if prefixes else r"(?P<prefix>(?!))"
    return re.sub(rf"{register}|{_LABEL}", renamed, code) + "\n"


def digest(ptx: str) -> str:
    """Return the SHA-256 of a PTX text's normalized code, as hexadecimal digits."""
    return sha256(normalized(ptx).encode()).hexdigest()


@dataclass(frozen=True)
class Code:
    """The identity of the compiled kernels of a module."""

    module: OneLine
    """The module's name."""
    smem_bytes: Count
    """Shared memory of ``matmul_kernel``, which PTX does not state."""
    matmul_kernel: Sha256
    """The digest of its PTX."""
    reduction_kernel: Sha256 | None = None
    """The digest of the kernel that adds up the sums of parts of K, None for a module without one."""

    @classmethod
    def of(cls, module: str, lowered: Lowered) -> Code:
        """Return the digests of a module's compiled code."""
        second = lowered.reduction_ptx
        return cls(
            module,
            lowered.resources.smem_bytes,
            digest(lowered.artifacts["ptx"].decode()),
            None if second is None else digest(second.decode()),
        )


@dataclass(frozen=True)
class Digests:
    """The contents of a file of digests."""

    triton: OneLine
    """The version of the compiler: another one may write other code."""
    modules: tuple[Code, ...]
    """Sorted by name."""


def write_digests(codes: Iterable[Code], path: Path) -> None:
    """Write the codes of modules into a file of digests, a line each.

    Raises:
        GemmgenError: The file cannot be written.
    """
    rows = [json.dumps(encoded(code)) for code in sorted(codes, key=lambda code: code.module)]
    version = json.dumps(triton_api.found_version())
    text = f'{{\n  "triton": {version},\n  "modules": [\n    ' + ",\n    ".join(rows) + "\n  ]\n}\n"
    write_files({path: text.encode()})


def record_digests(codes: Iterable[Code], path: Path) -> None:
    """Write the codes of modules into a file of digests, in place of the rows that it has of these modules.

    Rows of other modules stay, unless another Triton's code is in the file: then all are left out.

    Raises:
        GemmgenError: The file cannot be written, or it holds something else: ``bad-digests``.
    """
    known = read_digests(path) if path.exists() else None
    kept = known.modules if known and known.triton == triton_api.found_version() else ()
    write_digests({code.module: code for code in (*kept, *codes)}.values(), path)


def read_digests(path: Path) -> Digests:
    """Return the contents of a file of digests.

    Raises:
        GemmgenError: ``bad-digests`` for a file that cannot be read, or that holds something else.
    """
    return read_json(Digests, path, "bad-digests")


def changes(codes: Iterable[Code], path: Path) -> Iterator[Diagnostic]:
    """Yield the modules whose compiled code is not the code that a file of digests has.

    Raises:
        GemmgenError: ``bad-digests`` for a file that cannot be read, or that another Triton's code is in.
    """
    recorded = read_digests(path)
    if recorded.triton != (installed := triton_api.found_version()):
        message = (
            f"has the digests of Triton {recorded.triton}, and {installed} is installed: record them anew"
        )
        raise GemmgenError([Diagnostic(path.as_posix(), "bad-digests", message)])
    before = {code.module: asdict(code) for code in recorded.modules}
    for code in codes:
        if code.module not in before:
            yield Diagnostic(path.as_posix(), "code-unrecorded", "has no digest", field=code.module)
            continue
        parts = [name for name, value in asdict(code).items() if value != before[code.module][name]]
        if parts:
            verb = "differs" if len(parts) == 1 else "differ"
            message = f"{' and '.join(parts)} {verb} from the recorded code"
            yield Diagnostic(path.as_posix(), "code-changed", message, field=code.module)
