"""The command line: the only part that prints, by ``gemmgen.cli.reporting`` alone."""

from gemmgen.cli.app import app, main

__all__ = ["app", "main"]
