"""Epilogues: the computation between the sums of products and D, as an expression over loaded tensors.

`fold` is the one walk over an expression. A user of an epilogue (its result in torch, its statements, its
text) says how it treats each kind of node and leaves the walk to `fold`.
"""

from gemmgen.problem.epilogue.listed import NOTHING_LISTED, Listed, listed_steps
from gemmgen.problem.epilogue.nodes import (
    ACCUMULATOR,
    MATRIX,
    PLUS,
    TIMES,
    Acc,
    Algebra,
    Call,
    Cast,
    Computed,
    Load,
    Number,
    Value,
    fold,
    is_computed,
    loads_of,
    minus,
    plus,
    sums_in,
    times,
)
from gemmgen.problem.epilogue.steps import PLAIN, Epilogue, Output, Step, d_is, is_term, meaning_of
from gemmgen.problem.epilogue.text import (
    ATOM_RANK,
    OPEN_RANK,
    Spelled,
    Spelling,
    bracketed,
    described,
    written,
)
from gemmgen.problem.epilogue.zeros import keeps_zeros

__all__ = [
    "ACCUMULATOR",
    "ATOM_RANK",
    "MATRIX",
    "NOTHING_LISTED",
    "OPEN_RANK",
    "PLAIN",
    "PLUS",
    "TIMES",
    "Acc",
    "Algebra",
    "Call",
    "Cast",
    "Computed",
    "Epilogue",
    "Listed",
    "Load",
    "Number",
    "Output",
    "Spelled",
    "Spelling",
    "Step",
    "Value",
    "bracketed",
    "d_is",
    "described",
    "fold",
    "is_computed",
    "is_term",
    "keeps_zeros",
    "listed_steps",
    "loads_of",
    "meaning_of",
    "minus",
    "plus",
    "sums_in",
    "times",
    "written",
]
