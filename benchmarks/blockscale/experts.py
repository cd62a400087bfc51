"""Problems of experts with scales of blocks, as plain data that a machine with a GPU reads from an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

INDEX: Final = "index.json"
"""The file beside the modules that has the problems and the modules of each."""
EXPERTS: Final = 32
"""Experts of DeepSeek-V3 on one of eight GPUs: 256 in all."""
LAYERS: Final = ((4096, 7168), (7168, 2048))
"""N and K of its experts: gate and up together, and down."""
ROWS: Final = (1, 4, 16, 64, 512, 2048)
"""Rows of each group."""


@dataclass(frozen=True)
class Experts:
    """A problem of groups: all have the same number of rows, and each has its own B."""

    groups: int
    rows: int
    """Rows of each group."""
    n: int
    k: int

    @property
    def all_rows(self) -> int:
        """Rows of all groups."""
        return self.groups * self.rows

    @property
    def flops(self) -> int:
        """Operations: two for each product."""
        return 2 * self.all_rows * self.n * self.k

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all groups with their scales, which each call reads at least once."""
        return self.groups * (self.n * self.k + 4 * -(-self.n // 128) * -(-self.k // 128))


@dataclass(frozen=True)
class Prepared:
    """A problem with the names of its kernels, the planner's first choice first."""

    problem: Experts
    modules: tuple[str, ...]
    dense: Mapping[str, str]
    """The dense kernel of the same tile and schedule, of each kernel that has one."""


@dataclass(frozen=True)
class Index:
    """The problems of a folder of modules, and the decisions of each module in one line."""

    prepared: tuple[Prepared, ...]
    labels: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write the index into the folder."""
        (folder / INDEX).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Return the index of the folder."""
        data: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        prepared = (
            Prepared(Experts(**each["problem"]), tuple(each["modules"]), each["dense"])
            for each in data["prepared"]
        )
        return cls(tuple(prepared), data["labels"])


def problems() -> list[Experts]:
    """Return the problems, one layer after the other."""
    return [Experts(EXPERTS, rows, n, k) for n, k in LAYERS for rows in ROWS]
