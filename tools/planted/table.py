"""The outcome of each planted fault, and how many have each outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

NOT_MADE: Final = "not made"
"""The evidence of a module that is not planned or not rendered."""
SAME: Final = "same"
"""It changes no code of a module and no plan."""
EVERYTHING: Final = "everything"
"""No module is made that it is about, or the planner cannot be imported."""
CHECK: Final = "check"
"""The modules of the cover show it, or a module that is not made: each run plans and renders all."""
NIGHTLY: Final = "nightly"
"""Only modules outside of the cover show it."""
NEITHER: Final = "neither"
"""No module shows it that was judged."""
COUNTED: Final = (CHECK, NIGHTLY, NEITHER)


def outcome_of(told: Sequence[Mapping[str, Any]], died: str) -> dict[str, Any]:
    """Return the outcome of a fault, the evidence, and how many modules were made, changed and judged.

    `died` says how the judge's process ended before it had told all, "" if it did not: the module that it was
    at shows the fault.
    """
    parts: dict[str, dict[str, int]] = {}
    found: Mapping[str, Any] | None = None
    last: Mapping[str, Any] = {}
    for each in told:
        last = each
        if "everything" in each or "found" in each:
            found = each
            continue
        part = parts.setdefault(each["part"], {"made": 0, "changed": 0, "judged": 0})
        if "of" in each:
            part |= {"made": each["of"], "changed": each["changed"]}
        part["judged"] += "judged" in each
    if died and found is None and "module" in last:
        evidence = {"module": last["module"], "kind": "process", "text": f"{last['step']}: {died}"}
        found = {"part": last["part"], "found": evidence}
    outcome, evidence = NEITHER if any(part["changed"] for part in parts.values()) else SAME, None
    if found and "everything" in found:
        outcome, evidence = EVERYTHING, found["everything"]
    elif found:
        evidence = found["found"]
        outcome = CHECK if found["part"] == "cover" or evidence["kind"] == NOT_MADE else NIGHTLY
    return {
        "outcome": outcome,
        "evidence": evidence,
        **{name: parts.get(name) for name in ("cover", "others")},
    }


def totals(faults: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many faults of templates and of the planner have each outcome."""
    counts = Counter(
        ("templates" if each["file"].startswith("templates/") else "planner", each["outcome"])
        for each in faults
    )
    found: dict[str, dict[str, int]] = {}
    for part in ("templates", "planner"):
        row = {outcome: counts[part, outcome] for outcome in (*COUNTED, SAME, EVERYTHING)}
        found[part] = {"counted": sum(row[outcome] for outcome in COUNTED), **row}
    found["all"] = {name: found["templates"][name] + found["planner"][name] for name in found["planner"]}
    return found


def rows(found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the rows of the table in CONTRIBUTING.md: the counted faults by outcome."""
    return [
        f"| {part} | " + " | ".join(str(row[name]) for name in ("counted", *COUNTED)) + " |"
        for part, row in found.items()
    ]
