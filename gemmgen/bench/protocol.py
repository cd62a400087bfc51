"""The numbers of the timing protocol."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Protocol:
    """How often, how long, and over how much memory; every number must be positive.

    The figures are *sustained* ones: measured after the GPU has worked for ``warm_up_seconds`` without a
    pause, when its clock has settled at what the power limit allows.
    """

    repetitions: int = 3
    pairs: int = 15
    """Of samples in each repetition, the baseline's and then ours: what the second arm may lose, we lose."""
    sample_seconds: float = 10e-3
    """Least device time of a sample, a batch of calls; thousands of times the resolution of an event."""
    warm_up_seconds: float = 1.5
    graph_below_seconds: float = 100e-6
    """Kernels shorter than this are timed through a CUDA graph, since a host may not keep up with them."""
    graph_seconds: float = 1e-3
    """Least device time of such a graph, so that launching it costs nothing against running it."""
    l2_multiple: float = 2.5
    """Inputs are rotated over so many sets that all of them take this much of the L2 cache."""
    max_input_sets: int = 1024
    """Bounds the sets of small problems, which then stay within the cache: launching them costs more."""
    host_rounds: int = 5
    host_calls: int = 200
    """In each round; the host cost is the smallest of the rounds' medians."""
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "seed" and getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be positive")
