"""From a module to machine code and its measured resources; no GPU."""

from gemmgen.lower.lower import STAGES, Lowered, Resources, disassemble, lower

__all__ = ["STAGES", "Lowered", "Resources", "disassemble", "lower"]
