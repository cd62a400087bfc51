"""The plug-in of gemmgen that SGLang loads in each of its processes: the entry point ``sglang.srt.plugins``.

It imports nothing of SGLang unless GEMMGEN_SGLANG names a file of kernels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from gemmgen.integrations.plug_in import kernels_named_by, naming

VARIABLE: Final = "GEMMGEN_SGLANG"
"""The environment variable with the path of the file that says which modules to use."""


def register() -> None:
    """Read the file that GEMMGEN_SGLANG names (`kernels_named_by`), and register its kernels in SGLang.

    Raises ValueError for a file that cannot be read or has other names, for one with ``int4`` or ``int8``,
    and for modules that compute anything else; ImportError for a module that is not there. The message names
    the file, and nothing is registered. SGLang writes the error to its log and goes on without the plug-in.
    """
    if found := kernels_named_by(VARIABLE):
        plug_in = import_module("gemmgen.integrations.sglang").plug_in
        with naming(VARIABLE):
            alone = [name for name in ("int4", "int8") if getattr(found, name) is not None]
            if alone:
                raise ValueError(
                    f"the file has parts for vLLM alone ({', '.join(alone)}): this plug-in puts no kernels "
                    "into SGLang's layers of weights in integers"
                )
            plug_in(fp8_blocks=found.fp8_blocks, experts=found.experts)
