"""The launch of each generated module passes as many arguments as its kernels take, and in their order.

The simulator calls kernels without the wrapper: only a GPU would find that a list lacks an argument.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from modules import GROUPED_SPECS, SPECS, module_file

LISTS = {"arguments": "matmul_kernel", "reduction_arguments": "reduction_kernel"}
"""The kernel that takes each list of a launch."""


def functions_of(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(module_file(path.stem).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def listed(launch: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """Return the elements of each list of arguments that a launch makes."""
    return {
        target.id: node.value.elts
        for node in launch.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in LISTS
    }


@pytest.mark.parametrize("path", [*SPECS, *GROUPED_SPECS], ids=lambda path: path.stem)
def test_a_launch_passes_what_its_kernels_take(path: Path) -> None:
    functions = functions_of(path)
    lists = listed(functions["launch"])
    assert "arguments" in lists
    assert ("reduction_arguments" in lists) == ("reduction_kernel" in functions)
    for name, elements in lists.items():
        parameters = [each.arg for each in functions[LISTS[name]].args.args]
        assert len(elements) == len(parameters), (name, parameters)
        for element, parameter in zip(elements, parameters, strict=True):
            # A descriptor is made by a call; memory is passed as it is.
            tensor, _, kind = parameter.rpartition("_")
            if kind == "desc" and "_" in tensor:
                assert tensor in ast.unparse(element), (parameter, ast.unparse(element))
