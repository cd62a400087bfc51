"""Documents that somebody else may have written, read as typed values.

A document is data: a table, a record, the manifest of a library. ``decode`` reads one, ``kinds`` says which
values a member can have. ``gemmgen.literals`` writes such values into code, as text alone.
"""
