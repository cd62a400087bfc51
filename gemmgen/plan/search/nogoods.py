"""Nogood learning: combinations of decisions that a rule has refused, which a search skips."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Generic

from gemmgen.plan.rule import Rule, decisions_read, first_broken
from gemmgen.plan.search.space import P, Values

MOST_READ = 8
"""Most open decisions of one nogood: a rule that reads more is not learned from."""


class Nogoods(Generic[P]):
    """Nogoods that a search has learned: values of decisions that are illegal in every kernel.

    A rule that refuses a kernel refuses every kernel with equal values of the decisions that it read.
    """

    def __init__(self, rules: Iterable[Rule[P]], stated: Collection[str]) -> None:
        self.refusing: set[Rule[P]] = set()
        """Rules that some kernel broke."""
        self.judged = 0
        """Kernels that rules were asked about."""
        self._stated = frozenset(stated)
        self._rules = list(rules)
        self._too_wide: set[Rule[P]] = set()
        """Rules that read so much that hardly two kernels are alike to them."""
        self._known: dict[tuple[str, ...], dict[tuple[object, ...], Rule[P]]] = defaultdict(dict)

    @property
    def everything(self) -> bool:
        """True if the spec's statements are illegal whatever is chosen for open decisions."""
        return () in self._known

    def knows(self, decisions: Values) -> Rule[P] | None:
        """Return a rule that kernels with these decisions are known to break, None if none is known."""
        for names, known in self._known.items():
            try:
                values = tuple(decisions[name] for name in names)
            except KeyError:  # one follows from others, which are not all decided yet
                continue
            if broken := known.get(values):
                return broken
        return None

    def refuse(self, kernel: P) -> Rule[P] | None:
        """Return a rule that a kernel breaks, None if it is legal; what broke the last one is asked first."""
        if known := self.knows(vars(kernel)):
            return known
        self.judged += 1
        broken = first_broken(kernel, self._rules)
        if broken is None:
            return None
        self.refusing.add(broken)
        self._rules.remove(broken)
        self._rules.insert(0, broken)
        if broken not in self._too_wide:
            self._learn(kernel, broken)
        return broken

    def _learn(self, kernel: P, broken: Rule[P]) -> None:
        read = decisions_read(kernel, broken)
        if read is None:
            return
        names = tuple(sorted(read - self._stated))
        if len(names) > MOST_READ:
            self._too_wide.add(broken)
        else:
            self._known[names][tuple(getattr(kernel, name) for name in names)] = broken
