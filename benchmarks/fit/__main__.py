"""Print how the cost model agrees with the records, and fit its constants to them.

``python -m benchmarks.fit`` from the root of the repository, with numpy (which matplotlib brings). Nothing is
written: whoever changes a constant looks at the ranks first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.fit.figures import agreement, by_group, summary, table
from benchmarks.fit.model import EARLY, MANY_ROWS, Fit, constants, fit, left_out, streamed, using
from benchmarks.fit.observations import SpecObservation, by_candidates, is_open, observations

HERE = Path(__file__).parent
SUITES = HERE.parent / "suites"
FEW_ROWS, MANY_ROWS_PINNED = HERE / "h200_few_rows.jsonl", HERE / "h200_many_rows.jsonl"
UNFILLED_WAVES = HERE / "h200_unfilled_waves.jsonl"
ONE_WAVE = HERE / "h200_one_wave.jsonl"
WAVE_STORES = HERE / "h200_wave_stores.jsonl"
A_IN_REGISTERS = HERE / "h200_a_in_registers_e4m3.jsonl"
STAGGERED = (HERE / "h200_staggered.jsonl", HERE / "h200_staggered_e4m3.jsonl")
RECORDS = (
    FEW_ROWS,
    HERE / "h200_few_rows_e4m3.jsonl",
    *(SUITES / f"h200_{name}.jsonl" for name in ("few_rows", "few_rows_e4m3", "split_k", "many_rows")),
    MANY_ROWS_PINNED,
    UNFILLED_WAVES,
    ONE_WAVE,
    WAVE_STORES,
    A_IN_REGISTERS,
    *STAGGERED,
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
    rivals = sorted({each[0].spec if is_open(each[0].spec) else "pinned" for each in candidates})
    for rival in rivals:
        own = [
            each
            for each in candidates
            if rival in ("pinned", each[0].spec)
            and len(each) > 1
            and is_open(each[0].spec) != (rival == "pinned")
        ]
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
