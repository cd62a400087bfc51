"""The file that tells the plug-in of a server which modules to use, in vLLM and in SGLang."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from gemmgen.integrations.experts import Experts
from gemmgen.integrations.kernels import Kernel
from gemmgen.integrations.packed_product import PackedProduct

NEEDED: Final[Mapping[str, frozenset[str]]] = {
    "experts": frozenset({"up", "down"}),
    "int4": frozenset({"module"}),
    "int8": frozenset({"module"}),
}
"""The names that a part must have, of parts that may have few_rows beside them."""
FORM: Final = "fp8_blocks, experts with up, down and few_rows, and int4 and int8 with module and few_rows"
"""The names in a file."""


class ServerKernels(NamedTuple):
    """The kernels for a server; None for a part that stays the server's own."""

    fp8_blocks: Kernel | None
    """For linear layers with fp32 scales of blocks."""
    experts: Experts | None
    int4: PackedProduct | None
    """For linear layers of weights in int4."""
    int8: PackedProduct | None
    """For linear layers of weights in int8."""


def kernels_named_by(variable: str) -> ServerKernels | None:
    """Return the kernels of the file that an environment variable names; None without the variable.

    The file has JSON with names of modules, each part optional: ``{"fp8_blocks": NAME, "experts": {"up":
    NAME, "down": NAME, "few_rows": {"4": [NAME, NAME]}}, "int4": {"module": NAME, "few_rows": {"16":
    NAME}}, "int8": {…}}``, with int8 like int4.

    Raises ValueError for a file that cannot be read or has other names, and for modules that compute anything
    else; ImportError for a module that is not there. Each message names the file.
    """
    path = os.environ.get(variable)
    if not path:
        return None
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        wrong = {*found} - {"fp8_blocks", *NEEDED}
        parts: dict[str, Any] = {name: found.get(name) or {} for name in NEEDED}
        for name, part in parts.items():
            wrong |= {*part} - {*NEEDED[name], "few_rows"}
            wrong |= NEEDED[name] - {*part} if part else set()
            wrong |= set() if isinstance(part, dict) else {name}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{variable} must name a file of JSON, found {path}: {error}") from None
    if wrong:
        named = ", ".join(sorted(wrong))
        raise ValueError(f"{path} must have {FORM}, found {', '.join(found)}; unknown or missing: {named}")
    with naming(variable):
        return ServerKernels(
            fp8_blocks=_module(found["fp8_blocks"]) if found.get("fp8_blocks") else None,
            experts=_experts(parts["experts"]) if parts["experts"] else None,
            int4=_product(parts["int4"]) if parts["int4"] else None,
            int8=_product(parts["int8"]) if parts["int8"] else None,
        )


@contextmanager
def naming(variable: str) -> Generator[None]:
    """Name the file of an environment variable in each ValueError and ImportError about its modules."""
    try:
        yield
    except (ImportError, ValueError) as error:
        kind = ImportError if isinstance(error, ImportError) else ValueError
        raise kind(f"{os.environ.get(variable)}: {error}") from error


def _module(name: Any) -> Kernel:
    """Return the module of a name; raise ValueError for another value."""
    if not isinstance(name, str):
        raise ValueError(f"a kernel must be the name of its module, found {name!r}")
    return import_module(name)


def _experts(found: Mapping[str, Any]) -> Experts:
    """Return the kernels of experts by the names of their modules."""

    def pair(names: Any) -> tuple[Kernel, Kernel]:
        if not isinstance(names, list) or len(cast("list[Any]", names)) != 2:
            raise ValueError(f"few_rows of experts must have pairs [up, down] of modules, found {names!r}")
        up, down = cast("list[Any]", names)
        return _module(up), _module(down)

    return Experts(_module(found["up"]), _module(found["down"]), few_rows=_few_rows(found, pair))


def _product(found: Mapping[str, Any]) -> PackedProduct:
    """Return the kernels of weights of integers by the names of their modules."""
    return PackedProduct(_module(found["module"]), few_rows=_few_rows(found, _module))


def _few_rows(found: Mapping[str, Any], kernels: Callable[[Any], Any]) -> dict[int, Any]:
    """Return the kernels of a part for few rows, by the most rows; raise ValueError for other keys."""
    few: Any = found.get("few_rows") or {}
    if not isinstance(few, dict) or not all(most.isdecimal() for most in cast("dict[str, Any]", few)):
        raise ValueError(f"few_rows must have modules by the most rows, found {few}")
    return {int(most): kernels(names) for most, names in cast("dict[str, Any]", few).items()}
