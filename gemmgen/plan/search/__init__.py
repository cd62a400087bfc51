"""The search of one family of kernels: combinations that are tried, estimates of their time, refused ones.

A *configuration* has every decision on which a kernel's time depends; its *kernels* are the ways to store D
beside them. The planner looks at configurations in the order of their lower bounds and completes those that
can win.
"""

from gemmgen.plan.search.estimates import (
    Estimate,
    estimated,
    excess_of,
    geometric_mean,
    l2_bytes,
    moved_of,
    moved_of_each,
    traffic_of,
    whole_cycles,
)
from gemmgen.plan.search.kernel_family import Family
from gemmgen.plan.search.labels import narrow_cluster, narrow_tile, tile_and_cluster
from gemmgen.plan.search.nogoods import Nogoods
from gemmgen.plan.search.space import (
    MOST_CONFIGURATIONS,
    Branch,
    Choices,
    Configuration,
    Space,
    Values,
    spread,
    whole_number,
)

__all__ = [
    "MOST_CONFIGURATIONS",
    "Branch",
    "Choices",
    "Configuration",
    "Estimate",
    "Family",
    "Nogoods",
    "Space",
    "Values",
    "estimated",
    "excess_of",
    "geometric_mean",
    "l2_bytes",
    "moved_of",
    "moved_of_each",
    "narrow_cluster",
    "narrow_tile",
    "spread",
    "tile_and_cluster",
    "traffic_of",
    "whole_cycles",
    "whole_number",
]
