"""The meaning of a diagnostic's code: its entry of docs/rules.md, and an invalid spec that shows it."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import gemmgen
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.spec.diagnostics import did_you_mean, listing, quoted
from gemmgen.spec.vocabulary import meanings

MOST_OFFERED = 5
"""Rules that contain a part of a name, above which none is offered."""

EARLIER_CODES = {"exchanged-operands": "swap-ab"}
"""Codes of today by the names that earlier versions gave them, as old logs still have them."""


@dataclass(frozen=True)
class Explanation:
    """The explanation of a rule's id, of another code of a diagnostic, or of a word of specs."""

    code: str
    text: str
    """The entry of docs/rules.md: the purpose of the rule, its arithmetic and its source; or the meanings of
    the word.
    """

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.)\s", self.text, maxsplit=1)[0]

    @property
    def holds(self) -> tuple[str, ...]:
        """The sentences of the rule; if GPU generations differ, each sentence names its own."""
        found = {rule.says: generation for generation, rule in _rules() if rule.id == self.code}
        said = [(generation, " ".join(says.split())) for says, generation in found.items()]
        return tuple(f"{generation}: {says}" if len(said) > 1 else says for generation, says in said)

    @property
    def example(self) -> tuple[str, str, str] | None:
        """The name and the text of an invalid spec and its diagnostics, None if no file shows the code."""
        spec = _shown_by(self.code)
        if spec is None:
            return None
        said = [replace(each, path=spec.name) for each in _diagnostics(spec) if each.code == self.code]
        return spec.name, spec.read_text(encoding="utf-8"), "\n".join(map(str, said))

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        name, spec, said = self.example or (None, None, None)
        example = {"name": name, "spec": spec, "diagnostics": said} if name else None
        return {"code": self.code, "holds": list(self.holds), "text": self.text, "example": example}

    def __str__(self) -> str:
        parts = [self.code, *self.holds, self.text]
        if self.example:
            name, spec, said = self.example
            parts += [f"For example {name}:", textwrap.indent(spec.rstrip(), "    "), "is refused:", said]
        return "\n\n".join(parts)


@cache
def explanations() -> dict[str, Explanation]:
    """Return the explanation of each code, in the order of docs/rules.md."""
    page = _shipped("rules.md", "docs/rules.md").read_text(encoding="utf-8")
    entries = re.findall(r"^## ([\w-]+)\n(.+?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    return {code: Explanation(code, text.strip()) for code, text in entries}


def explanation_of(code: str) -> Explanation:
    """Return the explanation of a code, or of a word of specs: a field, a value of one, or an operation.

    Raises:
        GemmgenError: It is neither (``unknown-rule``).
    """
    known = explanations()
    name = code.removeprefix("error[").removesuffix("]").replace("_", "-").lower()
    name = EARLIER_CODES.get(name, name)
    if name not in known and (found := meanings(code)):
        return Explanation(code, "\n\n".join(found))
    if name not in known:
        parts = [each for each in known if name and name in each]
        meant = f"; did you mean {listing(parts, 'or')}?" if 0 < len(parts) <= MOST_OFFERED else ""
        message = (
            f"no rule and no word of specs is called {quoted(code)}{meant or did_you_mean(name, list(known))}"
        )
        raise GemmgenError([Diagnostic("gemmgen explain", "unknown-rule", message)])
    return known[name]


def _shown_by(code: str) -> Path | None:
    """Return an invalid spec that is refused with a code, preferably with no other; or None."""
    folder, stem = _shipped("invalid", "tests/invalid"), code.replace("-", "_")
    specs: list[tuple[int, bool, str]] = []
    for file in folder.glob("*/diagnostics.json"):
        for name, told in json.loads(file.read_text(encoding="utf-8")).items():
            if any(each["code"] == code for each in told):
                specs.append((len(told), name != stem, f"{file.parent.name}/{name}.yaml"))
    return folder / min(specs)[2] if specs else None


def _diagnostics(spec: Path) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of the loader or the planner for a spec."""
    from gemmgen.planner import plan_spec
    from gemmgen.spec import load_spec

    try:
        plan_spec(load_spec(spec))
    except GemmgenError as error:
        return error.diagnostics
    return ()


def _rules() -> list[tuple[str, Any]]:
    """Return each rule with the generation of GPUs that it holds for."""
    from gemmgen.hardware import GPUS
    from gemmgen.plan.choices import CHOICE_RULES
    from gemmgen.planner import FAMILIES

    generations = {gpu.architecture.mma: gpu.architecture.generation for gpu in GPUS.values()}
    of_families = [(generations[mma], rule) for mma, family in FAMILIES.items() for rule in family.rules]
    return [*of_families, *(("Any GPU", rule) for rule in CHOICE_RULES)]


def _shipped(name: str, source: str) -> Path:
    """Return the path of a file: inside an installed package, or beside it in a checkout."""
    package = Path(gemmgen.__file__).parent
    installed = package / name
    return installed if installed.exists() else package.parent / source
