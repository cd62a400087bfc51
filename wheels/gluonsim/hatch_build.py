"""The wheel of gluonsim alone: the package, and inside of it the modules of gemmgen that it imports.

The repository has each of these modules once, because both packages use them. In this wheel they are
``gluonsim.shared``, and every import of them is changed to it, so that nothing of gemmgen is needed.
"""

from __future__ import annotations

import ast
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parents[2]
SHARED = "gluonsim.shared"
"""The place of modules of gemmgen in the wheel."""


class Metadata(MetadataHookInterface):
    """Takes the version, the dependencies and the supported Pythons from the repository's project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the dynamic fields."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for name in ("version", "requires-python", "license"):
            metadata[name] = project[name]
        metadata["dependencies"] = project["optional-dependencies"]["compile"]
        chosen = ("Development Status", "Intended Audience", "Programming Language")
        metadata["classifiers"] = [name for name in project["classifiers"] if name.startswith(chosen)]


class Package(BuildHookInterface[Any]):
    """Puts the package and the license into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's name
        """Write the package into a folder of its own and include it."""
        self._folder = tempfile.TemporaryDirectory(prefix="gluonsim-wheel-")
        package = Path(self._folder.name)
        write_package(package)
        build_data["force_include"][str(package)] = "gluonsim"
        build_data["force_include"][str(ROOT / "LICENSE")] = "gluonsim/LICENSE"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the folder."""
        self._folder.cleanup()


def write_package(folder: Path) -> None:
    """Write gluonsim and the modules of gemmgen that it imports into a folder."""
    sources = sorted((ROOT / "gluonsim").rglob("*.py"))
    for path in (*sources, *sorted(imported_by(sources))):
        inside = path.relative_to(ROOT)
        parts = inside.parts[1:]
        place = folder.joinpath(*(parts if inside.parts[0] == "gluonsim" else ("shared", *parts)))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(moved(path.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "py.typed").touch()


def imported_by(sources: list[Path]) -> set[Path]:
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
    for node in nodes(source):
        assert node.module
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def nodes(source: str) -> Iterator[ast.ImportFrom]:
    """Yield the imports from gemmgen in a source.

    Raises:
        ValueError: A statement `import gemmgen`, whose uses would have to be changed as well.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(
            alias.name.split(".")[0] == "gemmgen" for alias in node.names
        ):
            raise ValueError(
                f"line {node.lineno}: write `from gemmgen import …` in a module that gluonsim uses"
            )
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gemmgen":
            yield node


def moved(source: str) -> str:
    """Return a source whose imports from gemmgen are from `SHARED`."""
    lines = source.splitlines(keepends=True)
    for node in nodes(source):
        lines[node.lineno - 1] = lines[node.lineno - 1].replace("from gemmgen", f"from {SHARED}", 1)
    return "".join(lines)
