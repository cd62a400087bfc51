"""A Gluon kernel and its arguments to TTGIR in generic form, by Triton's own passes; no GPU."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from gemmgen import cache, triton_api
from gemmgen.errors import GemmgenError
from gemmgen.hardware import Architecture
from gemmgen.module import SOURCE, import_generated
from gemmgen.processes.forking import LostError, forked
from gemmgen.processes.workers import call_in_worker
from gemmgen.python_source import is_self_contained
from gemmgen.triton_errors import Complaint, complaint
from gluonsim.findings import UNKNOWN, Frame, Location, message, refusal

PLACEHOLDER = "<kernel>"
"""Stands in the cache for the kernel's file, which may lie elsewhere the next time."""


T = TypeVar("T")
_SHARED = re.compile(r"\bttg\.shared = (\d+)")


@dataclass(frozen=True)
class GenericTtgir:
    """What the compiler made of a kernel."""

    text: str
    """The module in generic form, after the allocation of shared memory and warps."""
    library: str
    """Directory of Triton's source, with a separator at its end."""
    target: Architecture
    """What the kernel was compiled for."""
    arguments: Mapping[str, Any]
    """The values of the kernel's run-time parameters by name; each element of a tuple as ``pair.0``."""
    bound: Mapping[str, Any]
    """The values of all of its parameters, by name."""
    specialized: triton_api.Specialized | None = None
    """The launch, for machine code."""

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""
        found = _SHARED.search(self.text)
        return int(found.group(1)) if found else 0

    def machine_code(self) -> triton_api.MachineCode:
        """Compile the kernel to the end, in another process.

        Raises:
            GemmgenError: The compiler refuses the kernel (``lowering-failed``).
        """
        assert self.specialized is not None
        return in_child(self.specialized.machine_code)


def lower_kernel(
    kernel: Any, args: Sequence[Any], machine: Architecture, keywords: Mapping[str, Any]
) -> GenericTtgir:
    """Specialize a kernel for its arguments as a launch does, and compile it as far as it is simulated.

    `keywords` are arguments by name and options. The compiler runs in another process: some illegal kernels
    abort it. What it makes of a kernel whose file says all about it is kept in the cache; of any other,
    for as long as this process lives.

    Raises:
        GemmgenError: The arguments do not fit the kernel, the compiler refuses it, or is not the one that is
            known.
    """
    triton_api.require()
    capability, threads = machine.compute_capability, machine.threads_per_warp
    specialized = triton_api.specialize(kernel, args, keywords, capability, threads)
    library = triton_api.library_directory()

    def compiled() -> str:
        return _in_kept(specialized) or in_child(specialized.generic_ttgir, _begin(kernel))

    text = _cached_text(specialized, library, compiled)
    return GenericTtgir(
        text, f"{library}{os.sep}", machine, _flat(specialized), specialized.bound, specialized
    )


def _flat(specialized: triton_api.Specialized) -> dict[str, Any]:
    """Return the run-time arguments by name, each element of a tuple as ``pair.0``, ``pair.1``."""
    signature = specialized.terms.signature
    found: dict[str, Any] = {}
    for name, value in specialized.arguments.items():
        found |= _leaves(name, value, signature[name])
    return found


def _leaves(name: str, value: Any, kind: Any) -> dict[str, Any]:
    if not isinstance(kind, tuple):
        return {} if kind == "constexpr" else {name: value}
    found: dict[str, Any] = {}
    for i, (each, its_kind) in enumerate(zip(value, cast("tuple[Any, ...]", kind), strict=True)):
        found |= _leaves(f"{name}.{i}", each, its_kind)
    return found


def _cached_text(specialized: triton_api.Specialized, library: Path, compiled: Callable[[], str]) -> str:
    """Return the text from the cache, or else as it is compiled."""
    digest = specialized.digest()
    if digest is None:
        return compiled()
    file, identity = specialized.kernel_file, triton_api.identity(library)
    source = _read(file) if file and identity else None
    if source is None or not is_self_contained(source):
        return _kept(f"{file} {digest}", compiled)
    revision = cache.revision(Path(__file__), Path(triton_api.__file__))
    key = cache.key_of(("ttgir", revision, identity, digest, source))
    own, placeholder = f'"{file}"', f'"{PLACEHOLDER}"'
    text = cache.cached(
        key,
        lambda: {"ttgir": compiled().replace(own, placeholder).encode()},
        lambda files: files["ttgir"].decode(),
    )
    return text.replace(placeholder, own)


_TEXTS: dict[str, str] = {}
"""What this process has compiled, by what Triton's own cache in memory would tell apart."""
MOST_TEXTS = 256
"""A text takes some hundred kilobytes."""


def _kept(key: str, compiled: Callable[[], str]) -> str:
    if key not in _TEXTS:
        while len(_TEXTS) >= MOST_TEXTS:
            del _TEXTS[next(iter(_TEXTS))]
        _TEXTS[key] = compiled()
    return _TEXTS[key]


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


# --- the compiler in another process


def in_child(compile_: Callable[[], T], begin: Location = UNKNOWN) -> T:
    """Run a function in a forked child and return its result; an error quotes the output of the child.

    `begin` is the place of the kernel: an error that ends the compiler has no other one.
    """
    with tempfile.TemporaryFile() as log:
        try:
            with forked(partial(_compiled, compile_, log)) as result:
                outcome = result()
        except LostError as lost:
            log.seek(0)
            raise refusal(
                aborted(log.read().decode(errors="replace"), lost), begin, "lowering-failed"
            ) from lost
    if isinstance(outcome, Complaint):
        raise _refused(outcome)
    return outcome


def _in_kept(specialized: triton_api.Specialized) -> str | None:
    """Compile a generated module's kernel in a process that is kept for the next one, and return the text.

    None for a kernel that another process cannot have just so, or with values that might not be handed over;
    and where it is refused: earlier kernels must have no part in that, so a fork says why.
    """
    module, digest = specialized.generated_module, specialized.digest()
    if module is None or digest is None or specialized.terms.constexprs:
        return None
    try:
        return call_in_worker(partial(_compiled_again, *module, specialized.name, specialized.terms, digest))
    except LostError:
        return None


def _compiled_again(file: Path, text: str, name: str, terms: triton_api.Terms, digest: str) -> str | None:
    """In the process that is kept: compile a kernel of a module; None if that is refused, or another one."""
    try:
        module = import_generated(file)
    except GemmgenError:
        return None
    specialized = triton_api.specialized_as(getattr(module, name, None), terms)
    if module.__dict__[SOURCE] != text or specialized.digest() != digest:
        return None
    with tempfile.TemporaryFile() as log:
        outcome = _compiled(specialized.generic_ttgir, log)
    return None if isinstance(outcome, Complaint) else outcome


def _compiled(compile_: Callable[[], T], log: IO[bytes]) -> T | Complaint:
    """Return the result of the compiler, in the child, or the complaint; the log gets its output."""
    os.dup2(log.fileno(), 2)  # MLIR prints its errors there, and Python sees only that there was one
    try:
        return compile_()
    except BaseException as error:  # the parent reports it, whatever it is
        log.seek(0)
        return complaint(error, log.read().decode(errors="replace"))


_ASSERTION = re.compile(r"Assertion [`'](?P<text>.*)' failed|(?:LLVM ERROR|UNREACHABLE)[^\n]*")


def aborted(printed: str, lost: LostError) -> str:
    """Return the message for a compiler that ended without a result, with the reason that it printed."""
    found = _ASSERTION.search(printed)
    why = " ".join((found["text"] or found.group()).split()) if found else str(lost)
    return f"Triton aborts on the kernel ({why})"


def _begin(kernel: Any) -> Location:
    """Return the place of a kernel's definition; unknown if it has no source."""
    code = getattr(getattr(kernel, "fn", None), "__code__", None)
    return Location((Frame(code.co_filename, code.co_firstlineno),)) if code else UNKNOWN


def _refused(found: Complaint) -> GemmgenError:
    """Tell what the compiler says as a finding is told, with the lines of the kernel."""
    frames = tuple(Frame(file, line) for file, line in found.places)
    location = Location(frames).within(f"{triton_api.library_directory()}{os.sep}")
    quoted = [f"{frame} `{frame.snippet}`" for frame in location.frames]
    text = message(f"Triton refuses the kernel: {found.text}", "", 0, quoted)
    return refusal(text, location, "lowering-failed")
