"""Libraries: packages of generated modules that choose among them by shape, and need no gemmgen.

``sources`` reads measurements, ``selection`` decides, ``package`` writes and checks.
"""

from gemmgen.library.quality import SelectionFigures, SelectionReport, figures, left_out, tuned
from gemmgen.library.selection import (
    KERNELS,
    Selection,
    choose,
    forecast_of,
    predictable,
    ratios_of,
    select,
)

__all__ = [
    "KERNELS",
    "Selection",
    "SelectionFigures",
    "SelectionReport",
    "choose",
    "figures",
    "forecast_of",
    "left_out",
    "predictable",
    "ratios_of",
    "select",
    "tuned",
]
