"""gemmgen: one YAML spec of a matmul in, one readable, standalone Gluon kernel module out.

``gemmgen.api`` has the stages as functions. Nothing is imported with this package.
"""

__version__ = "0.2.0"

MODULE_FORMAT = 1
"""The contract between a generated module and its callers, as ``docs/stability.md`` has it.

It stands in every module in place of the version, so that a release rewrites no module that it does not
change. It goes up when a call that a module took would be refused, or would mean something else.
"""
