"""``python -m tools.counts``: counts of how far an idea spreads, which may only fall.

Counted are the files that name each feature outside of ``gemmgen/features``, whose folders own the features;
texts that are multiplied by a condition; device templates of at most three lines; and includes in device
templates. Files are those of the package, the launcher and the templates; comments and docstrings do not
count. ``tests/records/counts.json`` has the limits. If a count is above its limit,
the command ends with exit code 1; ``--record`` writes counts that have fallen.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
OWN: Final = ROOT / "gemmgen" / "features"
"""The folders of the features, which name their own."""
LIMITS: Final = ROOT / "tests" / "records" / "counts.json"
FEATURES: Final = {
    "groups": r"\.groups\b|\bGroups\b|group_slots|m_offsets|m_masked|k_offsets|\bbatched\b",
    "block scales": r"block_scaled|packs_scales|scales_sums|BlockScale\b|block_scales",
    "decoded weights": r"\.decoded\b|\bdecodes\b|decoded_weights",
    "gates": r"\bgated?\b|interleaved|in_blocks|b_blocks",
    "split-K": r"split_k|reduces_apart|\.splits\b",
    "saved sums": r"\bsaved?\b.{0,20}sum|saves_|saved_sums|SavedSums",
    "scales of D": r"\bd_scale|scales_of_d|output_scales|OutputScale",
    "rows by index": r"a_rows|d_rows|\bgather(s|ed)?\b|\bscatter(s|ed)?\b",
    "swap-AB": r"swap_ab",
    "PDL": r"dependent_launch|gdc_|\bearly\b",
    "promotion": r"promot",
    "composed tiles": r"composed",
    "staggered tiles": r"stagger",
    "misaligned": r"misaligned",
    "multicast": r"multicast",
}
"""What code that knows a feature says, by the feature."""
NO_CODE: Final = re.compile(r'"""[\s\S]*?"""|#[^\n]*')
NO_TEMPLATE: Final = re.compile(r"{#[\s\S]*?#}")
"""A comment of a template, which is no part of a module."""
PRODUCT: Final = re.compile(r"""(?:"[^"\n]*"|'[^'\n]*') \* (?:[a-z_]+[ .\[(]|bool|\()""")
"""A text that is multiplied by a condition."""
DEVICE: Final = ("shared", "walks", "wgmma", "tcgen05")
"""The folders of templates for code on the GPU."""
FEW_LINES: Final = 3
INCLUDE: Final = re.compile(r"{% include ")
"""A template that is put into another one: a function that is read in several files."""


def counted() -> dict[str, int]:
    """Return the counts by their names."""
    python = [*ROOT.glob("gemmgen/**/*.py"), *ROOT.glob("gemmgen_*.py")]
    templates = [*ROOT.glob("templates/**/*.j2")]
    code = {
        path: NO_CODE.sub("", path.read_text(encoding="utf-8")) for path in python if OWN not in path.parents
    }
    texts = code | {path: NO_TEMPLATE.sub("", path.read_text(encoding="utf-8")) for path in templates}
    device = [path for path in templates if path.relative_to(ROOT).parts[1] in DEVICE]
    counts = {
        f"files that name {feature}": sum(bool(re.search(pattern, text)) for text in texts.values())
        for feature, pattern in FEATURES.items()
    }
    counts["files that name a feature, of all features"] = sum(counts.values())
    counts["texts multiplied by a condition"] = sum(len(PRODUCT.findall(text)) for text in code.values())
    counts[f"device templates of at most {FEW_LINES} lines"] = sum(
        len(texts[path].splitlines()) <= FEW_LINES for path in device
    )
    counts["includes in device templates"] = sum(len(INCLUDE.findall(texts[path])) for path in device)
    return counts


def risen(counts: dict[str, int], limits: dict[str, int]) -> Iterator[str]:
    """Yield a sentence for each count above its limit."""
    for name, count in counts.items():
        if count > limits.get(name, 0):
            yield f"{name}: {count}, and at most {limits.get(name, 0)} are allowed"


def main() -> None:
    """Print the counts beside their limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write counts that have fallen as the limits")
    record = parser.parse_args().record
    counts = counted()
    limits: dict[str, int] = json.loads(LIMITS.read_text(encoding="utf-8"))
    for name, count in counts.items():
        sys.stdout.write(f"{count:5} of {limits.get(name, 0):5}  {name}\n")
    if record:
        fallen = {name: min(count, limits.get(name, count)) for name, count in counts.items()}
        LIMITS.write_text(json.dumps(fallen, indent=1) + "\n", encoding="utf-8")
    if found := [*risen(counts, limits)]:
        sys.exit("\n".join(["", *found]))


if __name__ == "__main__":
    main()
