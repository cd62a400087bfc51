"""Programs that tests need and that pip does not bring."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def program(*names: str) -> str:
    """Return the first of these programs that is there; without one, skip the test, or fail where CI runs."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        message = f"needs {' or '.join(names)}, and finds none"
        if os.environ.get("CI") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return found


STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror")


def compiled_c(*arguments: object) -> None:
    """Compile C as the Makefile of an export does, with warnings as errors."""
    from gemmgen.triton_api import cuda_include

    command = [program("gcc"), *STRICT, "-O1", "-isystem", str(cuda_include()), *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
