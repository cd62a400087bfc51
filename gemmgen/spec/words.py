"""The words that each decision of a spec can have."""

from __future__ import annotations

from typing import Literal

Major = Literal["k", "mn"]
"""The dimension of an operand that is contiguous in memory."""
Source = Literal["shared", "registers"]
"""Where the MMA reads A."""
Specialization = Literal["none", "cooperative", "ping_pong"]
"""How the consumers of a warp-specialized kernel divide their work."""
ScheduleKind = Literal["single_tile", "tiled", "persistent", "launch_control"]
"""How programs get their tiles."""
Order = Literal["row", "column", "grouped", "snake", "hilbert"]
"""How tiles follow one another."""
EarlyOperand = Literal["a", "b", "nothing"]
"""The operand that a kernel may load before the kernel ahead of it has ended."""
Trigger = Literal["loads", "end"]
"""When the kernel behind may be launched."""
Reduction = Literal["ordered", "atomic", "parallel"]
"""How the sums of a tile's splits are added up."""
Minor = Literal["m", "n"]
"""The dimension along which tiles follow one another first."""
Misaligned = Literal["refuse", "copy"]
"""The treatment of a tensor over whose rows TMA cannot stride."""
BColumns = Literal["blocks", "interleaved"]
"""The order of the columns of B that belong to two accumulators."""
MmaRows = Literal["m", "n"]
"""The dimension of D that lies along the rows of the matrix instruction: N with swap-AB."""
Searched = bool | int | str
"""A value that a spec wants tried."""
