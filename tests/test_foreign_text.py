"""Regular expressions read what others write; what gemmgen itself wrote is a value somewhere."""

from __future__ import annotations

import ast

from modules import ROOT

READS = {
    "gemmgen/bench/figures/suite_tables.py": "the profiler's names of cuBLAS kernels",
    "gemmgen/launch_facts.py": "PTX",
    "gemmgen/python_source.py": "modules of other programs",
    "gemmgen/cache.py": "names of files in a folder that others may write to",
    "gemmgen/cli/excerpt.py": "lines of a user's file",
    "gemmgen/cli/explanations.py": "docs/rules.md: a page for people, whose headings are the codes",
    "gemmgen/cli/make.py": "YAML files in a user's directory",
    "gemmgen/cli/measure.py": "a user's option",
    "gemmgen/cli/options.py": "a user's option",
    "gemmgen/kinds.py": "members of documents that somebody else may have written",
    "gemmgen/hardware/gpus.py": "the names that drivers give GPUs, and targets as users write them",
    "gemmgen/library/exchange.py": "the driver's name of a GPU",
    "gemmgen/literals.py": "any text that goes into a comment of C",
    "gemmgen/lower.py": "messages of compilers, PTX, and the log of ptxas",
    "gemmgen/packing.py": "a user's name of a pack",
    "gemmgen/plan/cards.py": "the names that drivers give GPUs",
    "gemmgen/product.py": "files that somebody else may have put in the place of generated ones",
    "gemmgen/ptx.py": "PTX",
    "gemmgen/spec/diagnostics.py": "scalars of a user's YAML, and messages of its parser",
    "gemmgen/spec/expression.py": "a user's expression",
    "gemmgen/spec/hints.py": "words of a user's spec",
    "gemmgen/spec/mistakes.py": "a user's YAML",
    "gemmgen/spec/module_names.py": "names of a user's files",
    "gemmgen/spec/reading.py": "a user's YAML and names of files",
    "gemmgen/spec/values.py": "names of accumulators in a user's spec",
    "gemmgen/triton_errors.py": "errors as MLIR prints them",
    "gemmgen/spec/writing.py": "texts of a user's spec that go into YAML",
    "gemmgen/verify/shapes.py": "a user's option",
    "gemmgen/verify/launches.py": "a user's option",
}
"""By module that imports `re`: the text of others that it reads."""


def test_every_module_with_regular_expressions_says_whose_text_it_reads() -> None:
    using: set[str] = set()
    for path in sorted((ROOT / "gemmgen").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = (
                {name.name for name in node.names}
                if isinstance(node, ast.Import)
                else {node.module}
                if isinstance(node, ast.ImportFrom)
                else set[str | None]()
            )
            if "re" in imported:
                using.add(path.relative_to(ROOT).as_posix())
    assert using == READS.keys()
