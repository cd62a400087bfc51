"""Variables of a module for the names that a spec gives to sums and to matrices in C.

A name of a user can be one that the module has for something else. A module is therefore rendered with
placeholders first, which shows every identifier of its own and every variable made of a user's name. If a
name would meet one of them, it gets underscores at its end in the whole module: code, docstrings, comments.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from gemmgen.plan.kernel import Kernel

PLACEHOLDER = "name_of_user_"
"""The start of each placeholder. No identifier of a template contains it."""


def with_free_names(plan: Kernel, source_of: Callable[[Kernel], str]) -> Kernel:
    """Return the plan whose user's names meet no other identifier of its module.

    Args:
        plan: The plan, with the names of its spec.
        source_of: Returns the source of a plan's module.
    """
    epilogue = plan.problem.epilogue
    sums = epilogue.accumulators
    names = (*(sums if len(sums) > 1 else ()), *epilogue.c_blocks)
    if not names:
        return plan
    placeholders = {name: f"{PLACEHOLDER}{number}" for number, name in enumerate(names)}
    used = frozenset(_identifiers(source_of(_renamed(plan, placeholders))))
    patterns = {name: _made_of(placeholder, used) for name, placeholder in placeholders.items()}
    chosen = free_names(patterns, {each for each in used if PLACEHOLDER not in each})
    return plan if all(name == free for name, free in chosen.items()) else _renamed(plan, chosen)


def free_names(patterns: Mapping[str, Collection[tuple[str, str]]], taken: Collection[str]) -> dict[str, str]:
    """Return names that are free, each of the fewest underscores at its end, by the names that are wanted.

    Args:
        patterns: What stands before and after each name in the identifiers that are made of it.
        taken: The identifiers that have another meaning.
    """
    found, met = dict[str, str](), set(taken)
    for name, affixes in patterns.items():
        free = name
        while met & (made := {f"{before}{free}{after}" for before, after in affixes}):
            free += "_"
        found[name] = free
        met |= made
    return found


def _made_of(placeholder: str, used: Collection[str]) -> set[tuple[str, str]]:
    """Return what stands before and after a placeholder in the identifiers that contain it."""
    split = (each.partition(placeholder) for each in used)
    return {(before, after) for before, found, after in split if found}


def _identifiers(source: str) -> Iterator[str]:
    """Yield the identifiers of Python source, without the words of comments and texts."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return (token.string for token in tokens if token.type == tokenize.NAME)


def _renamed(plan: Kernel, names: Mapping[str, str]) -> Kernel:
    """Return a plan whose sums, and matrices in C, have other names."""
    matmul = replace(plan.problem, epilogue=plan.problem.epilogue.renamed(names))
    return replace(plan, request=replace(plan.request, matmul=matmul))
