"""Documents that somebody else may have written: read as typed values, and written into code as text alone.

A document is data: a table, a record, the manifest of a library. ``decode`` reads one, ``kinds`` says which
values a member can have, ``literals`` writes a value into Python, C, HTML or SVG.
"""
