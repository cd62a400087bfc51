"""The contests of committed specs."""

from modules import ROOT, spec_file

from gemmgen.problem.contest import Contest
from gemmgen.spec import load_spec


def contest(stem: str) -> Contest:
    """Return the contest of a committed spec by its stem."""
    return load_spec(spec_file(stem)).contest


BF16 = contest("h100_bf16")
E4M3 = contest("h100_e4m3")
E4M3_TENSOR = load_spec(ROOT / "benchmarks" / "suites" / "specs" / "h200_e4m3.yaml").contest
"""e4m3 with a scale for the whole product."""
