"""Timing of kernels against baselines: from a module to a record, and from a record to a table and a plot."""

from gemmgen.bench.figures.record_plot import plot
from gemmgen.bench.figures.record_tables import markdown_table, plain_table
from gemmgen.bench.figures.suite_plots import ratio_picture, roofline_picture
from gemmgen.bench.figures.suite_tables import suite_markdown, suite_tables
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
from gemmgen.bench.result_log import ResultLog
from gemmgen.bench.single import bench, time_spec
from gemmgen.bench.suite_figures import errors_of, report_of
from gemmgen.bench.suite_file import Suite, load_suite
from gemmgen.bench.suite_run import SuiteMachinery, SuiteSelection, time_suite
from gemmgen.verify.shapes import parse_shapes

__all__ = [
    "Ceilings",
    "Protocol",
    "Record",
    "ResultLog",
    "Subject",
    "Suite",
    "SuiteMachinery",
    "SuiteSelection",
    "bench",
    "errors_of",
    "from_json",
    "load_suite",
    "markdown_table",
    "parse_shapes",
    "plain_table",
    "plot",
    "ratio_picture",
    "read_record",
    "report_of",
    "roofline_picture",
    "suite_markdown",
    "suite_tables",
    "time_spec",
    "time_suite",
    "to_json",
    "write_record",
]
