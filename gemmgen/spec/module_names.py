"""The names that a generated module may have, which are the stems of spec files."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

from gemmgen.spec.diagnostics import Code, quoted

# fmt: off
PACKAGES = frozenset({
    "_hypothesis_ftz_detector", "_hypothesis_globals", "_hypothesis_pytestplugin", "_pytest", "alembic",
    "annotated_doc", "annotated_types", "attr", "attrs", "certifi", "check_jsonschema", "click",
    "colorlog", "conftest", "contourpy", "coverage", "cuda", "cycler", "dateutil", "distutils",
    "filelock", "fontTools", "fsspec", "functorch", "gemmgen", "gemmgen_launch", "gluonsim", "greenlet",
    "hatchling", "hypothesis", "idna", "iniconfig", "isympy", "jax", "jinja2", "kernels", "kiwisolver",
    "mako", "markdown_it", "markupsafe", "material", "matplotlib", "mdurl", "mkdocs", "mkdocstrings",
    "mpl_toolkits", "mpmath", "networkx", "numpy", "nvidia", "optuna", "packaging", "PIL", "pip",
    "pkg_resources", "pluggy", "pre_commit", "py", "pydantic", "pydantic_core", "pydantic_settings",
    "pygments", "pylab", "pyparsing", "pyright", "pytest",
    "pytest_cov", "pytest_sugar", "referencing", "requests", "rich", "ruamel", "ruff", "scipy", "setuptools",
    "shellingham", "sitecustomize", "six", "spmd_types", "sqlalchemy", "sympy", "termcolor", "tomlkit",
    "torch", "torchao", "torchgen", "torchtitan", "torchtitan_recipes", "torchvision", "tqdm",
    "transformers", "triton", "triton_kernels", "typer", "tyro",
    "typing_extensions", "typing_inspection", "tzdata", "urllib3", "usercustomize", "vllm", "wheel",
    "xdist", "yaml",
})
# fmt: on
"""Top-level modules of the packages that gemmgen, its extras and torch install, or that callers import.

Python lists the modules of its own library. This list is kept by hand, because a spec must have the same
verdict on every machine: by the metadata of installed packages, a machine without torch would accept
``torch.yaml``. A test holds the list against the packages of pyproject.toml.
"""


def module_name_problem(name: str) -> str | None:
    """Return why a module should not have this name, None if it may.

    A generated module stands in a folder from which others are imported: it must not hide a module of Python
    or of a package that the kernel or its caller imports.
    """
    # `match` and other soft keywords can be imported; which words are soft depends on Python's version.
    if not (name.isascii() and name.isidentifier()):
        return "is not made of ASCII letters, digits and underscores with no digit first"
    if keyword.iskeyword(name):
        return "is a keyword of Python"
    if name in PACKAGES or name in sys.stdlib_module_names or name.startswith("__"):
        return "would shadow a module that Python or the kernel imports"
    if name.startswith("test_"):
        return "is the name of a file of tests, which pytest would collect"
    return None


def stem_problem(path: Path) -> tuple[Code, str] | None:
    """Return the code and the text of a diagnostic if no module can have a spec file's stem, else None."""
    problem = module_name_problem(path.stem)
    if not problem:
        return None
    fixed = re.sub("[^A-Za-z0-9]+", "_", path.stem).strip("_")
    if module_name_problem(fixed):
        fixed = f"matmul_{fixed}".rstrip("_")
    return "module-name", (
        f"the file's name is the generated module's, and {quoted(path.stem)} {problem};"
        f" rename it, e.g. to {fixed}{path.suffix}"
    )
