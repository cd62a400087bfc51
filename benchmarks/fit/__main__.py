"""Print how the cost model agrees with the records, and fit its constants to them.

``python -m benchmarks.fit`` from the root of the repository, with numpy (which matplotlib brings). Nothing is
written: whoever changes a constant looks at the ranks first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.fit.figures import agreement, by_group, summary, table
from benchmarks.fit.medians import observations
from benchmarks.fit.model import EARLY, MANY_ROWS, Fit, constants, fit, left_out, streamed, using
from benchmarks.fit.observations import SpecObservation, by_candidates

HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"
FEW_ROWS, MANY_ROWS_PINNED = HERE / "h200_few_rows.json", HERE / "h200_many_rows.json"
TABLES = ("unfilled_waves", "one_wave", "wave_stores", "a_in_registers_e4m3", "staggered", "staggered_e4m3")
"""Tables of pinned kernels that are alike in one thing."""
RECORDS = (
    FEW_ROWS,
    *(SUITES / f"h200_{name}.jsonl" for name in ("few_rows", "few_rows_e4m3", "many_rows")),
    MANY_ROWS_PINNED,
    *(HERE / f"h200_{name}.json" for name in TABLES),
)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--no-fit", action="store_true", help="only compare the constants as they are")
    arguments = parser.parse_args()
    found = {record: list(observations(record)) for record in RECORDS}
    for record, each in found.items():
        _compare(f"{record.parent.name}/{record.stem}", each)
    if arguments.no_fit:
        return
    many = [each for each in found[MANY_ROWS_PINNED] if not streamed(each)]
    early = [each for each in found[FEW_ROWS] if streamed(each) and each.kernel.dependent]
    _fit("many rows", many, MANY_ROWS)
    _fit("launched early", early, EARLY)


def _compare(record: str, found: list[SpecObservation]) -> None:
    candidates = by_candidates(found)
    for rival in sorted({each[0].rival for each in candidates}):
        own = [each for each in candidates if each[0].rival == rival and len(each) > 1]
        kernels = len({each.kernel for group in own for each in group})
        print(f"{record}, {rival}: {sum(map(len, own))} times of {kernels} kernels")
        print(table(by_group(map(agreement, own))), end="\n\n")


def _fit(name: str, found: list[SpecObservation], names: tuple[str, ...]) -> None:
    shipped = constants(names)
    whole = fit(found, shipped)
    print(f"{name}: {len(found)} times; the loss is {whole.before:.3f}, and {whole.loss:.3f} with")
    for constant, value in whole.values.items():
        print(f"  {constant:<32} {value:>10.4g}  (is {shipped[constant]:.4g})")
    print(_of(found, whole), end="\n\n")
    kept, out = left_out(found)
    nine_tenths = fit(kept, shipped)
    shapes = len({each.shape for each in out})
    print(f"fitted without {shapes} shapes, of these:")
    print(_of(out, nine_tenths), end="\n\n")


def _of(found: list[SpecObservation], fitted: Fit) -> str:
    with using(fitted.values):
        return table({"all": summary(map(agreement, by_candidates(found)))})


if __name__ == "__main__":
    main()
