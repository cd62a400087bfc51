"""From a module to a timing record, and from a record to a table and a plot."""

from gemmgen.bench.plot import plot
from gemmgen.bench.protocol import Protocol
from gemmgen.bench.record import Record, Subject
from gemmgen.bench.roofline import Ceilings
from gemmgen.bench.run import bench
from gemmgen.bench.shapes import parse_shapes
from gemmgen.bench.store import from_json, to_json
from gemmgen.bench.table import markdown_table, plain_table

__all__ = [
    "Ceilings",
    "Protocol",
    "Record",
    "Subject",
    "bench",
    "from_json",
    "markdown_table",
    "parse_shapes",
    "plain_table",
    "plot",
    "to_json",
]
