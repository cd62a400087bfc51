"""The stages as functions, for programs that use gemmgen: ``from gemmgen import api``.

Every fault of a spec, a kernel or the machine is raised as one ``GemmgenError``, whose ``diagnostics``
the command line prints. ``plan`` takes milliseconds and needs neither torch nor Triton; nothing
heavy is imported before a function that needs it is called. (The functions are not in ``gemmgen`` itself,
where ``gemmgen.plan`` is the package of that stage.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gemmgen.errors import Diagnostic, GemmgenError

if TYPE_CHECKING:
    from gemmgen.build import Built, Exported
    from gemmgen.product import Product
    from gemmgen.verify.simulation import Simulation

__all__ = ["Diagnostic", "GemmgenError", "build", "export", "init", "plan", "simulate"]

SCHEMA_FILE = "gemmgen.schema.json"
"""The file of the JSON Schema that the first line of a new spec names, for editors; it is beside the spec."""


def init(path: str | Path = "matmul.yaml") -> Path:
    """Write a commented spec to start from, and return its path; ``.yaml`` is added to a name without it.

    The JSON Schema that the first line of the spec names is written beside it, as ``gemmgen.schema.json``.
    Another file of this name stays as it is.

    Raises:
        GemmgenError: The file exists already (``file-exists``), cannot be written (``cannot-write``), or its
            name cannot be a module's (``module-name``).
    """
    from gemmgen.product import write_files
    from gemmgen.spec.model import SCHEMA_ID, json_schema
    from gemmgen.spec.module_names import stem_problem
    from gemmgen.spec.reading import SUFFIXES

    path = Path(path)
    path = path if path.suffix in SUFFIXES else path.with_name(f"{path.name}.yaml")
    text = resources.files("gemmgen").joinpath("example.yaml").read_text(encoding="utf-8")
    if path.exists():
        raise GemmgenError(
            [Diagnostic(path.as_posix(), "file-exists", "exists already: choose another name")]
        )
    if problem := stem_problem(path):
        raise GemmgenError([Diagnostic(path.as_posix(), *problem)])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        message = f"cannot write: {error.strerror}"
        raise GemmgenError([Diagnostic(path.as_posix(), "cannot-write", message)]) from error
    schema = path.with_name(SCHEMA_FILE)
    if not schema.exists() or SCHEMA_ID in schema.read_text(encoding="utf-8", errors="replace"):
        write_files({schema: f"{json.dumps(json_schema(), indent=2)}\n".encode()})
    return path


def plan(spec: str | Path) -> Product:
    """Return the plan, the module and the ledger of a spec, without a compiler.

    Its ``module`` is the text of the generated module, ``ledger`` the account of the hardware's resources
    (``as_text()``, ``as_dict()``), ``plan`` every decision. Any file name is accepted: nothing is written.

    Raises:
        GemmgenError: The spec is malformed, or no legal plan satisfies it.
    """
    from gemmgen.product import make

    return make(Path(spec), any_name=True)


def build(
    spec: str | Path,
    out: str | Path = "generated",
    *,
    emit: Sequence[str] = (),
    lower: bool = True,
    simulate: bool = True,
) -> Built:
    """Generate, compile and simulate a spec's module, and write it under `out` once every stage has passed.

    `emit` names artifacts to write beside it: ``ttgir``, ``llir``, ``ptx``, ``cubin``, ``sass``. Without
    `lower` nothing is compiled, nor simulated.

    Raises:
        GemmgenError: A stage refuses the spec or finds a fault, or the compiler is not installed; then
            nothing has been written.
    """
    from gemmgen.build import build as build_spec
    from gemmgen.device import require_compiler

    if lower:
        require_compiler()
    return build_spec(Path(spec), Path(out), emit=emit, lowering=lower, simulation=simulate)


def export(spec: str | Path, aot: str | Path) -> Exported:
    """Write the files of a spec's kernel for C programs into the directory `aot`, and return their paths.

    The files are the cubin, its header and facts in C, and the launcher in C that all kernels share.

    Raises:
        GemmgenError: A stage refuses the spec, there is no launcher for such a kernel, or the compiler is not
            installed; then nothing has been written.
    """
    from gemmgen.build import export as export_spec
    from gemmgen.device import require_compiler

    require_compiler()
    return export_spec(Path(spec), Path(aot))


def simulate(
    spec: str | Path, *, shape: tuple[int, int, int] | None = None, schedules: int = 10, seed: int = 0
) -> Simulation:
    """Compile a spec's kernel and run it on the CPU under many schedules; return what that showed.

    `shape` is (M, N, K); without it, one that wraps every ring and one of many tiles are run. `schedules` are
    random ones, beside the fixed ones. Faults of the kernel are in the result's ``problems``, not raised.

    Raises:
        GemmgenError: The spec is refused, the compiler is not installed or refuses the kernel, or the
            simulator does not know something in it.
    """
    from gemmgen.device import require_compiler
    from gemmgen.product import make

    require_compiler()
    from gemmgen.verify.launches import all_launches, pinned_launches
    from gemmgen.verify.simulation import simulate_product

    product = make(Path(spec))
    launches = pinned_launches(shape, schedules) if shape else all_launches(product.plan, schedules)
    return simulate_product(product, launches, seed=seed)
