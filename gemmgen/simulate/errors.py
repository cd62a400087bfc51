"""What the simulator refuses: an operation, a type or a toolchain that it does not know."""

from __future__ import annotations

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.simulate.location import UNKNOWN, Location


def refusal(message: str, location: Location = UNKNOWN, code: str = "simulator-unsupported") -> GemmgenError:
    """Return the error for something that the simulator would otherwise have to guess or to skip."""
    return GemmgenError([Diagnostic(location.file or "<kernel>", code, message, line=location.line)])
