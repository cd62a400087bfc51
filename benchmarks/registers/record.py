"""Record what the compiler says of the registers of kernels, in the table that gemmgen ships.

Each spec is settled as ``gemmgen build`` does it: its best plan is compiled, and the next one where its
registers are not enough; the verdict on each is recorded. No GPU is needed. ``make verdicts`` records the
kernels of all committed specs; for a new release of Triton, and after templates have changed what they emit,
``--anew`` has them all compiled again:

    python benchmarks/registers/record.py [--ranked N] [--anew] [--table gemmgen/plan/verdicts.json] SPEC…
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gemmgen import triton_api
from gemmgen.build import lowered_of, settle
from gemmgen.errors import GemmgenError
from gemmgen.features.rendering import render
from gemmgen.lower import ShortageError, verdict_on
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.verdicts import SHIPPED, Table, Verdict, kernel_digest, read_table, table_text
from gemmgen.planner import rank
from gemmgen.product import Product, write_files
from gemmgen.spec import SpecFile, load_spec

SAVED_EVERY = 20
"""Specs after which the table is written, so that a run that is ended has not been in vain."""


class Recorder:
    """The verdicts of a table, and those on what is compiled besides."""

    def __init__(self, known: Table) -> None:
        self.verdicts = dict(known.kernels)

    def prove(self, product: Product) -> None:
        """Compile a product's module, unless its verdict is known.

        Raises:
            ShortageError: Its registers are not enough.
            GemmgenError: The compiler refuses it, or what it made differs from the plan.
        """
        digest = kernel_digest(product.plan)
        if (known := self.verdicts.get(digest)) and known.fits:
            return
        try:
            self.verdicts[digest] = verdict_on(product.plan, lowered_of(product).resources)
        except ShortageError as error:
            self.verdicts[digest] = error.verdict
            raise

    def prove_ranked(self, source: SpecFile, count: int) -> None:
        """Compile the first kernels of a spec's ranking, whether their registers are enough or not."""
        for candidate in rank(source).to_measure(count):
            try:
                self.prove(_product_of(source, candidate.plan))
            except ShortageError as error:
                _tell(source, error)


def _product_of(source: SpecFile, kernel: Kernel) -> Product:
    module = render(kernel, spec_name=Path(source.path).name, spec_sha256=source.sha256)
    return Product(source, kernel, module)


def _tell(source: SpecFile, error: ShortageError) -> None:
    sys.stderr.write(f"{source.path}: {error.verdict}\n")


def _known(path: Path, *, anew: bool) -> Table:
    """Return the verdicts that the table has for the installed Triton; none of them is found again."""
    installed = triton_api.found_version() or ""
    known = read_table(path) if path.exists() and not anew else Table(installed, {})
    return known if known.triton == installed else Table(installed, {})


def _write(path: Path, verdicts: dict[str, Verdict]) -> None:
    write_files({path: table_text(Table(triton_api.found_version() or "", verdicts)).encode()})


def main() -> int:
    """Record the kernels of the specs that are named; return 1 if one of them could not be settled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    parser.add_argument("--ranked", type=int, default=0, metavar="N", help="also the first N of its ranking")
    parser.add_argument("--anew", action="store_true", help="forget the verdicts that the table has")
    parser.add_argument("--table", type=Path, default=SHIPPED)
    options = parser.parse_args()
    triton_api.require()
    if options.anew:
        _write(options.table, {})  # outdated verdicts must not make the planner pass over a kernel
    recorder, failed = Recorder(_known(options.table, anew=options.anew)), False
    for number, path in enumerate(options.specs, 1):
        try:
            source = load_spec(path)
            settle(source, recorder.prove)
            if options.ranked:
                recorder.prove_ranked(source, options.ranked)
        except GemmgenError as error:
            sys.stderr.write(f"{error}\n")
            failed = True
        if number % SAVED_EVERY == 0:
            _write(options.table, recorder.verdicts)
    _write(options.table, recorder.verdicts)
    sys.stderr.write(f"{len(recorder.verdicts):,} verdicts in {options.table}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
