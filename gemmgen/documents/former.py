"""What a reader says of a document that an earlier gemmgen wrote."""

from typing import Final

COMMAND: Final = "python -m gemmgen.migrate"


def other_version(member: str, shown: str, found: object, read: int) -> str:
    """Return the refusal of a version: what was found, what is read, and for an earlier one the way there."""
    message = f"{member} is {shown}; this gemmgen reads {read}"
    if type(found) is int and found < read:
        return f"{message}: `{COMMAND}` brings the file there"
    return message
