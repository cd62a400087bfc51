"""Draws suites of layers that no library was tuned for: ``python -m benchmarks.fit.strangers HALF > FILE``.

N and K come from the configurations of public models. Layers of the suite that libraries were tuned for are
left out. M is as schedulers make it: few rows of decoding, batches and chunks of
prompts, any number or whole blocks of 64. A seed draws the shapes, and their halves: constants may be
fitted to the first, and the second is only measured.
"""

import math
import random
import sys
from pathlib import Path
from typing import Final

from gemmgen.bench.suite_file import load_suite

Shape = tuple[int, int, int]
"""M, N and K."""

LAYERS: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "Llama-3.2-1B": ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)),
    "Llama-3.2-3B": ((5120, 3072), (3072, 3072), (16384, 3072), (3072, 8192)),
    "Qwen3-4B": ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728)),
    "Qwen3-8B": ((24576, 4096), (4096, 12288)),
    "Qwen3-14B": ((7168, 5120), (5120, 5120), (34816, 5120), (5120, 17408)),
    "Qwen2.5-72B": ((59136, 8192), (8192, 29568)),
    "Gemma-3-12B": ((8192, 3840), (3840, 4096), (30720, 3840), (3840, 15360)),
    "Gemma-3-27B": ((8192, 5376), (5376, 4096), (43008, 5376), (5376, 21504)),
    "Mistral-Small-24B": ((6144, 5120), (5120, 4096), (65536, 5120), (5120, 32768)),
    "Phi-4": ((7680, 5120), (35840, 5120), (5120, 17920)),
    "gpt-oss": ((5120, 2880), (2880, 4096)),
    "GLM-4.5-Air": ((12288, 4096), (4096, 12288), (21888, 4096), (4096, 10944)),
    "Kimi-K2": ((12288, 1536), (7168, 8192)),
    "Llama-3-70B on four GPUs": ((2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)),
    "Qwen3-32B on eight GPUs": ((1280, 5120), (5120, 1024), (6400, 5120), (5120, 3200)),
}
"""N and K of the layers of models: QKV, the output of attention, gate and up, down; without twins."""
SEED: Final = 55
COUNT: Final = 120
BANDS: Final = ((1, 64, 0.40), (65, 1024, 0.38), (1025, 8192, 0.22))
"""Least M, largest M, and the share of shapes."""
MOST_OPERATIONS: Final = 6e12
"""Of a shape, M N K, so that a run ends."""
TUNED: Final = Path(__file__).parents[1] / "suites" / "h200.yaml"


def rows_of_a(draw: random.Random) -> int:
    """Return an M: even on a logarithmic scale within a band, and half of the many in whole blocks of 64."""
    least, most, _ = draw.choices(BANDS, [share for *_, share in BANDS])[0]
    m = round(math.exp(draw.uniform(math.log(least), math.log(most))))
    return -(-m // 64) * 64 if m > BANDS[0][1] and draw.random() < 0.5 else m


def halves() -> tuple[list[Shape], list[Shape]]:
    """Return the shapes that may be fitted, and those that are only measured."""
    tuned = {shape[1:] for family in load_suite(TUNED).families for shape in family.shapes}
    layers = [nk for rows in LAYERS.values() for nk in rows if nk not in tuned]
    draw, found = random.Random(SEED), dict[Shape, None]()
    while len(found) < COUNT:
        m, (n, k) = rows_of_a(draw), draw.choice(layers)
        if m * n * k <= MOST_OPERATIONS:
            found[m, n, k] = None
    shapes = draw.sample([*found], COUNT)
    return shapes[: COUNT // 2], shapes[COUNT // 2 :]


HALVES: Final = {
    "fitted": "Constants may be fitted to these shapes, and kernels chosen for them",
    "measured": "Nothing is fitted to these shapes: they are only measured",
}


def text(half: str) -> str:
    """Return the suite of a half, of `HALVES`."""
    shapes = dict(zip(HALVES, halves(), strict=True))[half]
    lines = [
        f"# Drawn by `python -m benchmarks.fit.strangers {half}`. {HALVES[half]}.",
        f"title: Layers that no kernel was chosen for, {half}",
        "source: layers of public models, drawn by a seed",
        "dtypes: [bf16, e4m3]",
        "families:",
        "  linear:",
        "    shapes:",
        *(f"      - [{m}, {n}, {k}]" for m, n, k in shapes),
    ]
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    sys.stdout.write(text(sys.argv[1]))
