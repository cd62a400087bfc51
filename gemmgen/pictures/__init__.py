"""Pictures of a plan: memory, registers, the ring, and the order of tiles.

They come from the plan alone: neither torch nor Triton is needed. `svg` stacks the drawings of a kernel.
"""

from gemmgen.pictures.drawing import Drawing
from gemmgen.pictures.ring import pipeline
from gemmgen.pictures.sheet import drawings, svg
from gemmgen.pictures.tile_order import place, reuse

__all__ = ["Drawing", "drawings", "pipeline", "place", "reuse", "svg"]
