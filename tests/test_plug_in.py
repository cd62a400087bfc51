"""The file that names modules for a server: a mistake in it is told with its name. No server is needed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmgen.integrations import sglang_plug_in, vllm_plug_in
from gemmgen.integrations.plug_in import kernels_named_by

pytestmark = pytest.mark.quick

VARIABLE = "GEMMGEN_VLLM"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A function that writes the file that both variables name, and returns its path."""

    def written(text: str) -> str:
        path = tmp_path / "kernels.json"
        path.write_text(text)
        for variable in (VARIABLE, "GEMMGEN_SGLANG"):
            monkeypatch.setenv(variable, str(path))
        return str(path)

    return written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"int4": {"module": "json", "few_rows": ["x"]}}', ": few_rows must have modules by the most rows"),
        ('{"int4": {"module": "json", "few_rows": {"0": "json"}}}', ": a key of few_rows must be a number"),
        ('{"int4": {"module": "json"}}', ": a kernel is an imported module or library"),
        ('{"int4": {"module": 4}}', ": a kernel must be the name of its module, found 4"),
        ('{"fp8_blocks": {"module": "json"}}', ": a kernel must be the name of its module, found {"),
        (
            '{"experts": ["up", "down"]}',
            " must have fp8_blocks, experts with up, down and few_rows, and int4",
        ),
        (
            '{"experts": {"up": "json", "down": "json", "few_rows": {"4": "json"}}}',
            ": few_rows of experts must have pairs [up, down] of modules, found 'json'",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_name(
    text: str, said: str, write: Callable[[str], str]
) -> None:
    path = write(text)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}{said}")):
        kernels_named_by(VARIABLE)


def test_a_module_that_is_not_there_is_told_with_the_file(write: Callable[[str], str]) -> None:
    path = write('{"int4": {"module": "a_module_of_no_wheel"}}')
    with pytest.raises(ImportError, match=f"^{re.escape(path)}: No module named 'a_module_of_no_wheel'$"):
        kernels_named_by(VARIABLE)


@pytest.mark.parametrize("plug_in", [vllm_plug_in, sglang_plug_in], ids=["vLLM", "SGLang"])
def test_a_kernel_that_a_server_refuses_is_told_with_the_file(
    plug_in: Any, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise ValueError("json computes something else")

    for name in ("vllm", "sglang"):
        server = SimpleNamespace(plug_in=refuse)
        monkeypatch.setitem(sys.modules, f"gemmgen.integrations.{name}", server)
    path = write('{"fp8_blocks": "json"}')
    with pytest.raises(ValueError, match=f"^{re.escape(path)}: json computes something else$"):
        plug_in.register()
