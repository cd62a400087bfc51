"""From a module to machine code and its measured resources; no GPU."""

from gemmgen.lower.lower import STAGES, Lowered, Resources, lower
from gemmgen.triton_api import disassemble

__all__ = ["STAGES", "Lowered", "Resources", "disassemble", "lower"]
