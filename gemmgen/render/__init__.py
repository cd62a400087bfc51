"""From a plan to the text of a module."""

from gemmgen.render.render import render

__all__ = ["render"]
