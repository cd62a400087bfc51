"""The committed specs and their modules.

Those that a user would start from are under specs/ and generated/; specs/README.md lists them by use. The
others, which complete the coverage of features and of pairs of features, have their specs under tests/pairs,
and their modules are rendered when a test first asks for one. `SPECS` has both, because everything that is
asserted of the ones is asserted of the others. It has the specs of gradients too, which lie beside the
modules under generated/. It has no spec with groups: those are called with other tensors, and
tests/test_groups.py asserts all of them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gemmgen.module import import_generated
from gemmgen.product import Product, make
from gemmgen.verify import verify
from tools.rendered import PAIRS, folder_of, libraries

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "generated"
"""Where the modules are that git has."""


def _specs(directory: Path) -> tuple[Path, ...]:
    return tuple(sorted(directory.glob("*.yaml")))


_FILES = {spec.stem: spec for folder in (ROOT / "specs", COMMITTED, PAIRS.sources) for spec in _specs(folder)}
WANTED = _specs(ROOT / "specs")
"""The specs that a user would start from."""
EVERY_SPEC = (*WANTED, *_specs(PAIRS.sources))
"""The specs of both folders, with groups too, but without the specs of gradients, which gemmgen writes."""
GROUPED_SPECS = tuple(
    _FILES[stem] for stem in sorted(_FILES) if "\ngroups:" in _FILES[stem].read_text(encoding="utf-8")
)
"""The specs with groups, and the generated specs of their gradients."""
SPECS = tuple(_FILES[stem] for stem in sorted(_FILES) if _FILES[stem] not in GROUPED_SPECS)
HOPPER_SPECS = tuple(spec for spec in SPECS if spec.stem.startswith("h100_"))
BLACKWELL_SPECS = tuple(spec for spec in SPECS if spec.stem.startswith("b200_"))


def spec_file(stem: str) -> Path:
    """Return where the committed spec of this name is."""
    return _FILES[stem]


def file_of(stem: str) -> Path | None:
    """Return where the committed spec of this name is; None if there is none."""
    return _FILES.get(stem)


def module_file(stem: str) -> Path:
    """Return where the module of this name is, which is rendered first if git does not have it."""
    of_pairs = spec_file(stem).parent == PAIRS.sources
    return (folder_of(PAIRS) if of_pairs else COMMITTED) / f"{stem}.py"


def libraries_folder() -> Path:
    """Return the folder to import the committed libraries from, which are rendered first."""
    (folder,) = {folder_of(each).parent for each in libraries()}
    return folder


@cache
def made(path: Path) -> Product:
    """What follows from a committed spec, derived once in each process."""
    return make(path)


def assert_verified_on_a_gpu(stem: str, *, m: int = 8, n: int = 8, k: int = 8) -> None:
    """Verify a committed module in the shapes of its spec, and in the same shapes with this much added."""
    source = made(spec_file(stem)).source
    shapes = source.request.check_shapes
    larger = [(of_m + m, of_n + n, of_k + k) for of_m, of_n, of_k in shapes]
    found = verify(import_generated(module_file(stem)), source, (*shapes, *larger), repeats=5)
    assert [str(check) for check in found.failures] == []
    assert len(found.checks) > 20
