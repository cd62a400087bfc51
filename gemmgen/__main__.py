"""The process of the command line: how it starts and how it ends."""

from __future__ import annotations

import os
import signal
import sys


def run() -> None:
    """Run the command line; the process ends here, with its exit code."""
    # While nothing runs that has to be undone, an interrupt ends the process without a traceback.
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gemmgen.cli import main
    from gemmgen.product import WRITING
    from gemmgen.scratch import discard_scratch

    signal.signal(signal.SIGINT, handler)
    try:
        main()
    except SystemExit as end:
        code = end.code
    else:
        code = 0
    sys.stderr.flush()
    with WRITING:  # a module that is being written is written as a whole
        discard_scratch()
        # Not through Python's own end, which waits for the threads that an interrupt leaves, and at which
        # Triton's binding library reports leaks of its own on stderr.
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    run()
