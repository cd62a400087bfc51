"""Tuning by measurement: the fastest kernel of a spec for a shape, kept as specs and as a table."""

from gemmgen.tune.table import FORMAT, INSTALL, TABLE, TunedRow, add_to_table, read_table, require_optuna

__all__ = [
    "FORMAT",
    "INSTALL",
    "TABLE",
    "TunedRow",
    "add_to_table",
    "read_table",
    "require_optuna",
]
