"""The constants of the cost model as numbers that can be changed, and how they are fitted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from benchmarks.fit.observations import SpecObservation, by_candidates
from gemmgen.features.block_scales import scale_cost
from gemmgen.features.dependent_launch import early_cost
from gemmgen.features.promotion import planning as promotion
from gemmgen.features.split_k import split_cost
from gemmgen.plan.wgmma import WgmmaKernel, cost_constants

MODULES = (cost_constants, promotion, scale_cost, split_cost, early_cost)
"""The modules that hold constants of the cost model: one for all kernels, the others for one feature each."""

MANY_ROWS = (
    "TENSOR_CYCLES_PER_NS",
    "POWER_CYCLES_PER_NS",
    "POWER_EXPONENT",
    "SMEM_WRITE_SHARE",
    "LOAD_LATENCY_NS",
    "LOAD_BYTES_PER_NS",
    "SHARED_TILE_NS",
    "EPILOGUE_START_NS",
    "EPILOGUE_BYTES_PER_NS_AND_WARP",
    "TURN_NS",
    "CLUSTER_SHARE",
    "CLUSTER_START_NS",
    "OCCUPANCY_SHARE",
    "START_NS",
    "ROUND_NS",
    "DRAM_BYTES_SHARE",
    "L2_BYTES_PER_NS",
)
"""Constants of tiled kernels, fitted to shapes of 128 rows or more; exponents are set by hand."""
EARLY = ("EARLY_NS", "EARLY_PLACES", "EARLY_LOSS", "EARLY_COVER")
"""Constants of kernels of few rows that are launched early, fitted to their times."""
NEARNESS = 3.0
"""Slope of a kernel's weight: a kernel that takes twice as long as the fastest counts a quarter."""
OUTLIER = 0.1
"""Deviation (of the logarithm, weighted) beyond which an observation counts by its amount, not its square."""
STEP = 1e-4
"""Relative change of a constant with which derivatives are taken."""


def streamed(found: SpecObservation) -> bool:
    """Return True if the constants of few rows apply to a kernel."""
    kernel = found.kernel
    return isinstance(kernel, WgmmaKernel) and kernel.swap_ab and kernel.schedule_kind == "tiled"


def constants(names: Sequence[str]) -> dict[str, float]:
    """Return the values of constants as they are."""
    return {name: float(getattr(_module_of(name), name)) for name in names}


def _module_of(name: str) -> ModuleType:
    """Return the module that has a constant."""
    return next(module for module in MODULES if hasattr(module, name))


@contextmanager
def using(values: Mapping[str, float]) -> Iterator[None]:
    """Let the cost model have other constants in the context."""
    before = {name: getattr(_module_of(name), name) for name in values}
    try:
        for name, value in values.items():
            setattr(_module_of(name), name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(_module_of(name), name, value)


@dataclass(frozen=True)
class Fit:
    """Constants, and how far the model is from the observations with them."""

    values: dict[str, float]
    loss: float
    before: float
    """Loss with the constants at the beginning of the fit."""


def fit(found: Sequence[SpecObservation], start: Mapping[str, float], *, steps: int = 30) -> Fit:
    """Return the constants that minimize the deviation from observations, by Levenberg and Marquardt.

    They are varied by factors, so that each stays positive. The deviation is that of logarithms of times.
    """
    names = list(start)
    measured = np.log([each.seconds for each in found])
    weights = np.array(_weights(found))

    def deviations(logs: np.ndarray) -> np.ndarray:
        with using(dict(zip(names, map(math.exp, logs), strict=True))):
            predicted = np.log([each.predicted for each in found])
        plain = (predicted - measured) * weights / OUTLIER
        return np.sign(plain) * np.sqrt(2 * (np.sqrt(1 + plain**2) - 1)) * OUTLIER

    return _least_squares(deviations, names, np.log(list(start.values())), steps)


def _weights(found: Sequence[SpecObservation]) -> list[float]:
    fastest: dict[int, float] = {}
    for candidates in by_candidates(found):
        best = min(each.seconds for each in candidates)
        fastest |= {id(each): best for each in candidates}
    return [1 / (1 + NEARNESS * (each.seconds / fastest[id(each)] - 1)) for each in found]


def _least_squares(
    deviations: Callable[[np.ndarray], np.ndarray], names: Sequence[str], at: np.ndarray, steps: int
) -> Fit:
    """Return the minimum of the sum of squares; steps become shorter if the sum does not fall."""
    damping, here = 1e-2, deviations(at)
    loss = before = float(here @ here)
    for _ in range(steps):
        moved = np.eye(len(at)) * STEP
        slopes = np.stack([(deviations(at + each) - here) / STEP for each in moved], axis=1)
        curvature, downhill = slopes.T @ slopes, -slopes.T @ here
        improved = False
        for _ in range(8):
            damped = curvature + damping * np.diag(np.diag(curvature) + 1e-9)
            there = at + np.clip(np.linalg.solve(damped, downhill), -0.5, 0.5)
            next_here = deviations(there)
            if improved := float(next_here @ next_here) < loss:
                break
            damping *= 4
        if not improved:
            break
        gained = 1 - float(next_here @ next_here) / loss
        at, here, loss, damping = there, next_here, float(next_here @ next_here), damping / 3
        if gained < 1e-4:
            break
    return Fit(dict(zip(names, np.exp(at).tolist(), strict=True)), loss, before)


def left_out(
    found: Sequence[SpecObservation], share: float = 0.1, seed: int = 14
) -> tuple[list[SpecObservation], ...]:
    """Return the observations without those of a random share of the shapes, and those observations."""
    shapes = sorted({each.shape for each in found})
    drawn = set(random.Random(seed).sample(shapes, round(share * len(shapes))))
    kept = [each for each in found if each.shape not in drawn]
    return kept, [each for each in found if each.shape in drawn]
