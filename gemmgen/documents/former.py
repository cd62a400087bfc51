"""The error for a document that another version of gemmgen wrote."""

from typing import Final

COMMAND: Final = "python -m gemmgen.migrate"


def other_version(member: str, shown: str, found: object, read: int) -> str:
    """Return the message for a version that is not read; an earlier one gets the command that migrates it."""
    message = f"{member} is {shown}; this gemmgen reads {read}"
    if type(found) is int and found < read:
        return f"{message}: `{COMMAND}` brings the file there"
    return message
