"""From a module to a timing record, and from a record to a table and a plot."""

from gemmgen.bench.contest import bench, time_spec
from gemmgen.bench.figures import markdown_table, plain_table, plot
from gemmgen.bench.record import (
    Ceilings,
    Protocol,
    Record,
    Subject,
    from_json,
    read_record,
    to_json,
    write_record,
)
from gemmgen.verify.shapes import parse_shapes

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
    "read_record",
    "time_spec",
    "to_json",
    "write_record",
]
