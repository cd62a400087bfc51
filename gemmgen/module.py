"""A generated module, from its file to its ``matmul``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from gemmgen.errors import Diagnostic, GemmgenError

if TYPE_CHECKING:
    from torch import Tensor

    from gemmgen.problem import Matmul


class MatmulFunction(Protocol):
    """The one function that a generated module offers: D[M, N] from A[M, K] and B[K, N], logical shapes.

    Everything else is a keyword: ``out``, optional, and, required exactly if the spec uses it, ``c`` [M, N],
    ``row_scale`` and ``row_bias`` [M], ``column_scale`` and ``column_bias`` [N], and ``tensor_scale`` [1]; of
    block-scaled operands ``a_scale`` [M, ceil(K / vector)] and ``b_scale`` [N, ceil(K / vector)], or the
    tensors that the module's ``pack_scales`` makes of them.
    """

    def __call__(self, a: Tensor, b: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
        """Return D, which is ``out`` where that was given. There is no third positional argument."""
        ...


SOURCE = "__gemmgen_source__"
"""The attribute of an imported module that has its text, for processes that import it again."""


def import_generated(path: Path) -> ModuleType:
    """Return the module at ``path``, named by its stem and with a callable ``matmul``.

    It is executed afresh on each call and registered nowhere: ``sys.path`` and ``sys.modules`` stay as they
    are, and no bytecode is cached, whose timestamps could not tell two modules written within one second
    apart. Triton reads the source again, through ``inspect.getsource``, when a kernel is compiled: keep the
    file.

    Raises GemmgenError (``no-module``: it cannot be read; ``bad-module``: it cannot be executed or has no
    ``matmul``).
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the module: {error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "no-module", message)]) from error
    module = ModuleType(path.stem)
    module.__file__ = str(path.resolve())
    module.__package__ = ""  # a file of its own: the launcher is the one that is installed
    module.__dict__[SOURCE] = source
    try:
        exec(_code_of(source, module.__file__), module.__dict__)
    except Exception as error:  # a generated file may have been edited by hand: anything can come out of it
        line = _line_of(error, module.__file__)
        message = f"cannot import the module: {type(error).__name__}: {error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "bad-module", message, line=line)]) from error
    if not callable(module.__dict__.get("matmul")):
        message = "the module has no function `matmul`"
        raise GemmgenError([Diagnostic(path.as_posix(), "bad-module", message)])
    return module


@lru_cache(maxsize=64)
def _code_of(source: str, file: str) -> CodeType:
    """Compile a module's text: half of the time to import it, and it may be imported again."""
    return compile(source, file, "exec", dont_inherit=True)


def matmul_of(module: ModuleType) -> MatmulFunction:
    """Return the module's ``matmul``, typed."""
    matmul: MatmulFunction = module.matmul
    return matmul


def pack_scales_of(module: ModuleType) -> Callable[[Tensor], Tensor] | None:
    """Return the module's ``pack_scales``, which those with packed scales of operands have; else None."""
    return module.__dict__.get("pack_scales")


def packing_of(problem: Matmul, imported: Callable[[], ModuleType]) -> Callable[[Tensor], Tensor] | None:
    """Return the ``pack_scales`` of a module that is imported for it; None if the matmul packs no scales."""
    return pack_scales_of(imported()) if problem.packs_scales else None


def arrange_scales_of(module: ModuleType) -> Callable[[str, Tensor], Tensor] | None:
    """Return the module's ``arrange_scales``, which those with scales of sums have."""
    return module.__dict__.get("arrange_scales")


def make_workspace_of(matmul: MatmulFunction) -> Callable[..., object] | None:
    """Return the ``make_workspace(m, n, device)`` of a ``matmul``'s module, None if it has none."""
    return getattr(matmul, "__globals__", {}).get("make_workspace")


def _line_of(error: Exception, file: str) -> int | None:
    """Return the 1-based line of ``file`` that raised ``error``: the innermost one."""
    if isinstance(error, SyntaxError):
        return error.lineno
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return lines[-1] if lines else None
