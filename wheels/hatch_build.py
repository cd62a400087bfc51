"""The wheels of gemmgen and of gluonsim: each file of the two packages is in exactly one of them.

gluonsim imports some modules of gemmgen that know no specs, such as ``gemmgen.errors``. They are in the wheel
of gluonsim, so that it works alone; the wheel of gemmgen requires that wheel, and has all other modules.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {
    "templates": "gemmgen/templates",
    "docs/rules.md": "gemmgen/rules.md",
    "tests/invalid": "gemmgen/invalid",
}
"""Places in the wheel of gemmgen, and in an sdist, of files that a checkout has elsewhere."""


class Metadata(MetadataHookInterface):
    """Takes what gluonsim has in common with gemmgen from the pyproject.toml of the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the dynamic fields."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for name in ("version", "requires-python", "license"):
            metadata[name] = project[name]
        metadata["optional-dependencies"] = {"compile": project["optional-dependencies"]["compile"]}
        chosen = ("Development Status", "Intended Audience", "Programming Language")
        metadata["classifiers"] = [name for name in project["classifiers"] if name.startswith(chosen)]


class Files(BuildHookInterface[Any]):
    """Says which files a wheel has, and that gemmgen requires gluonsim."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fill in the files and the dependencies of a wheel; an editable one has neither of its own."""
        if version == "editable":
            return
        project = cast(Any, self).metadata
        is_gemmgen = project.name == "gemmgen"
        for path in of_gemmgen() if is_gemmgen else of_gluonsim():
            build_data["force_include"][str(path)] = path.relative_to(ROOT).as_posix()
        if is_gemmgen:
            elsewhere = {str(ROOT / path): place for path, place in SHIPPED.items() if (ROOT / path).exists()}
            build_data["force_include"].update(elsewhere)
            build_data["dependencies"].append(gluonsim(project.version))


def gluonsim(version: str) -> str:
    """Return the requirement of a wheel of gemmgen: gluonsim of the same version, from the same checkout.

    A wheel that is built from an sdist has no checkout beside it, and names the version only.
    """
    is_checkout = not (ROOT / "PKG-INFO").exists()
    return f"gluonsim @ {(ROOT / 'wheels/gluonsim').as_uri()}" if is_checkout else f"gluonsim=={version}"


def of_gluonsim() -> list[Path]:
    """Return the files of the wheel of gluonsim."""
    own = files(ROOT / "gluonsim")
    return sorted({*own, *imported_by(path for path in own if path.suffix == ".py")})


def of_gemmgen() -> list[Path]:
    """Return the files of the package in the wheel of gemmgen."""
    return sorted({*files(ROOT / "gemmgen")} - {*of_gluonsim()})


def files(package: Path) -> list[Path]:
    """Return the files of a package, without compiled ones."""
    return [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def imported_by(sources: Iterable[Path]) -> set[Path]:
    """Return the files of gemmgen that sources import, those that these import, and their packages."""
    found: set[Path] = set()
    waiting = list(sources)
    while waiting:
        for name in imports(waiting.pop().read_text(encoding="utf-8")):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                base = ROOT.joinpath(*parts[:length])
                for path in (base / "__init__.py", base.with_suffix(".py")):
                    if path.is_file() and path not in found:
                        found.add(path)
                        waiting.append(path)
    return found


def imports(source: str) -> Iterator[str]:
    """Yield the modules of gemmgen that a source imports, and ``module.name``, which may be a module too."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.split(".")[0] == "gemmgen")
