"""Records as one page for a browser."""

from gemmgen.report.page import report

__all__ = ["report"]
