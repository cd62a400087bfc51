"""The plug-in of gemmgen that vLLM loads in each of its processes: the entry point ``vllm.general_plugins``.

It imports nothing of vLLM unless GEMMGEN_VLLM names a file of kernels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from gemmgen.integrations.plug_in import kernels_named_by, naming

VARIABLE: Final = "GEMMGEN_VLLM"
"""The environment variable with the path of the file that says which modules to use."""


def register() -> None:
    """Read the file that GEMMGEN_VLLM names (`kernels_named_by`), and put its kernels before vLLM's own.

    Raises ValueError for a file that cannot be read or has other names, and for modules that compute anything
    else; ImportError for a module that is not there. The message names the file, and nothing is put anywhere.
    """
    if found := kernels_named_by(VARIABLE):
        plug_in = import_module("gemmgen.integrations.vllm").plug_in
        with naming(VARIABLE):
            plug_in(**found._asdict())
