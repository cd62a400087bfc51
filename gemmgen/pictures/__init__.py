"""Pictures of a plan: memory, registers, the ring, the order of tiles, and the place of each element.

They come from the plan alone: neither torch nor Triton is needed. `svg` stacks the drawings of a kernel;
`page` shows them in a browser and looks up any element.
"""

from gemmgen.drawing import Drawing
from gemmgen.pictures.page import drawings, look_ups, page, svg
from gemmgen.pictures.ring import pipeline
from gemmgen.pictures.tile_order import place, reuse

__all__ = ["Drawing", "drawings", "look_ups", "page", "pipeline", "place", "reuse", "svg"]
