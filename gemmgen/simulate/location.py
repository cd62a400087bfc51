"""Where an operation comes from: call frames with the names that the source gave to values."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Frame:
    """One source line, and the variable that it assigns where the compiler knows it."""

    file: str
    line: int
    """1-based."""
    name: str | None = None


@dataclass(frozen=True)
class Location:
    """Call frames, innermost first; empty when the compiler lost the source."""

    frames: tuple[Frame, ...] = ()

    @property
    def line(self) -> int | None:
        """The innermost line of the kernel's own source."""
        return self.frames[0].line if self.frames else None

    @property
    def file(self) -> str | None:
        """The file of `line`."""
        return self.frames[0].file if self.frames else None

    @property
    def name(self) -> str | None:
        """The variable that the innermost line assigns, or else the call that it returns to."""
        return next((frame.name for frame in self.frames if frame.name), None)

    def named(self, name: str) -> Location:
        """Return the same place, its innermost frame assigning to `name`."""
        if not self.frames:
            return self
        return Location((replace(self.frames[0], name=name), *self.frames[1:]))

    def within(self, excluded: str) -> Location:
        """Drop the frames of files under a directory: the toolchain's own library.

        A location that lies there as a whole is kept: it is the only one there is.
        """
        frames = tuple(frame for frame in self.frames if not frame.file.startswith(excluded))
        return Location(frames) if frames else self

    def __str__(self) -> str:
        return f"line {self.line}" if self.frames else "an unknown line"


UNKNOWN = Location()
