"""Problems of groups and of batches, as plain data that the machine with the GPU reads from an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

INDEX = "index.json"
"""The file beside the modules that has the problems and the modules of each."""
ELEMENT_BYTES = 2
"""Bytes of an element of A, B and D, which are bf16."""
LARGE_GROUP_ROWS = 1024
"""Mean rows of a group from which the dense kernel of the same tile is timed too."""


@dataclass(frozen=True)
class Problem:
    """Groups of rows that one call multiplies with a matrix B each."""

    name: str
    """Model and projection, or the shape of the batches."""
    kind: Literal["m_offsets", "batched"]
    groups: int
    rows: int
    """All rows of ``m_offsets``; the rows of each group of ``batched``."""
    n: int
    k: int
    tokens: int | None = None
    """Tokens that are routed to experts; None for ``batched``."""

    @property
    def all_rows(self) -> int:
        """Rows of A of all groups."""
        return self.rows if self.kind == "m_offsets" else self.rows * self.groups

    @property
    def flops(self) -> int:
        """Operations of the matmul: two for each product that is added."""
        return 2 * self.all_rows * self.n * self.k

    @property
    def has_large_groups(self) -> bool:
        """True if the dense kernel of the same tile is timed too."""
        return self.kind == "m_offsets" and self.rows >= LARGE_GROUP_ROWS * self.groups

    @property
    def memory_bytes(self) -> int:
        """Bytes of A and B, and of D three times: one of each arm, and the expected one."""
        elements = self.groups * self.n * self.k + self.all_rows * (self.k + 3 * self.n)
        return ELEMENT_BYTES * elements


@dataclass(frozen=True)
class Prepared:
    """A problem with its kernels: names of modules, the planner's first choice first."""

    problem: Problem
    modules: tuple[str, ...]
    dense: Mapping[str, str]
    """The dense kernel of the same tile, of each kernel that has one."""


@dataclass(frozen=True)
class Index:
    """The problems of a folder of modules, and the decisions of each module in one line."""

    prepared: tuple[Prepared, ...]
    skews: tuple[float, ...]
    labels: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write the index into the folder."""
        (folder / INDEX).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Return the index of the folder."""
        data: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        prepared = (
            Prepared(Problem(**each["problem"]), tuple(each["modules"]), each["dense"])
            for each in data["prepared"]
        )
        return cls(tuple(prepared), tuple(data["skews"]), data["labels"])
