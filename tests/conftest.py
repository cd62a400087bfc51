"""What several test files share: what follows from the committed specs, and which tests are quick."""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Generator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from modules import ROOT, SPECS, made

# Before anything imports Triton, which warns when this is unset.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# NumPy's idle threads spin: a tenth of a second of processor time in each process that imports torch.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What is compiled once is there for every test, worker and run: an entry is named by all that it depends on.
os.environ.setdefault("GEMMGEN_CACHE_DIR", str(ROOT / ".pytest_cache" / "gemmgen"))

import torch

from gemmgen.__main__ import GARBAGE_THRESHOLDS
from gemmgen.cache import cached, key_of
from gemmgen.lower import Lowered, lower
from gemmgen.product import Product
from gemmgen.triton_api import disassemble

# The suite runs one worker per core: more threads only wait for each other.
torch.set_num_threads(1)

_block_of = lru_cache(maxsize=4096)(inspect.getblock)


def _known_block(lines: Sequence[str]) -> list[str]:
    """Return the lines of the function or class that begins with the first line."""
    return list(_block_of(tuple(lines)))


# Triton asks for the source of each function when a module is imported, and Python's tokenizer finds its end:
# a third of the time to import a module, and tests import the same modules thousands of times.
cast(Any, inspect).getblock = _known_block

QUICK = frozenset(
    f"test_{name}"
    for name in (
        "architecture",
        "baseline",
        "blackwell_rules",
        "blackwell_wrapper",
        "choices",
        "clocks",
        "filecheck",
        "integrations",
        "ledger",
        "library",
        "pairs",
        "pictures",
        "plan",
        "problem",
        "problem_scaled",
        "product",
        "quantize",
        "readme",
        "render",
        "report",
        "rules",
        "spec_load",
        "tolerance",
        "total_rules",
        "tune",
        "wrapper",
    )
)
"""Test files that need no compiler, or only in the tests of single specs."""
SLOW = frozenset(
    f"test_{name}"
    for name in (
        "a_committed_library_follows_from_its_records_byte_for_byte_and_the_page_has_its_figures",
        "another_triton_is_named_before_any_name_of_it_is_missed",
        "arbitrary_bytes_are_reported_within_the_file",
        "a_mutated_spec_loads_or_is_reported_within_the_file",
        "each_fix_that_a_text_names_satisfies_the_rule",
        "every_finding_of_every_rule_is_shown_by_a_spec",
        "every_wait_and_fence_says_what_it_is_for",
        "in_a_browser_all_text_can_be_read_and_elements_are_looked_up",
        "in_a_browser_the_pictures_in_docs_can_be_read",
        "in_a_browser_the_page_fits_and_sorts_without_an_error",
        "inductor_calls_the_kernel_and_what_it_refuses_torch_computes",
        "importing_a_library_imports_no_kernel_and_needs_neither_gpu_nor_triton",
        "no_value_past_the_named_one_is_legal",
        "one_bad_field_gives_at_most_one_diagnostic",
        "scales_are_packed_as_defined_element_by_element",
        "what_cannot_be_read_is_found",
        "where_one_value_is_wrong_a_fix_makes_the_spec_legal",
        "every_combination_of_parts_is_formatted_and_lint_clean",
        "every_process_renders_the_same_bytes",
        "every_two_features_that_can_meet_do",
        "processes_that_build_at_the_same_time_leave_one_whole_product",
        "seeds_differ_in_kind_from_what_the_planner_ranks_first",
        "a_reader_sees_the_old_module_or_the_new_one_even_if_the_writer_is_killed",
        "a_kernel_is_said_to_have_roles_if_its_module_specializes_warps",
        "every_cluster_tile_and_type_is_planned_or_refused_in_words",
        "random_blackwell_specs_with_c_are_planned_or_refused_in_words",
    )
)
"""The tests in them that take seconds all the same."""
SAMPLED = frozenset({"test_lower", "test_blackwell_lower", "test_simulate_specs", "test_product"})
"""Test files that compile or simulate every spec: of these, two specs are quick."""
SAMPLES = frozenset({"h100_bf16", "b200_bf16"})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the files of which `make quick` runs nothing: that takes each worker seconds."""
    stem, marks = collection_path.stem, str(config.getoption("markexpr"))
    ignored = marks.startswith("quick") and stem.startswith("test_") and stem not in QUICK | SAMPLED
    return True if ignored else None  # None: others may say so


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage in what is imported and collected, which stays: that takes half of the time."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make quick` runs."""
    for item in items:
        if item.get_closest_marker("gpu"):
            continue
        compiled = not {"lowered", "compiled", "kernels"}.isdisjoint(getattr(item, "fixturenames", ()))
        name = item.name.partition("[")[0]
        fast = item.path.stem in QUICK and not compiled and name not in SLOW
        if fast or (item.path.stem in SAMPLED and _is_sample(item)):
            item.add_marker("quick")


def _is_sample(item: pytest.Item) -> bool:
    """Whether a test is about one of the specs that stand for all."""
    callspec = getattr(item, "callspec", None)
    spec = callspec.params.get("product") if callspec else None
    return isinstance(spec, Path) and spec.stem in SAMPLES


@pytest.fixture(scope="session", params=SPECS, ids=lambda path: path.stem)
def product(request: pytest.FixtureRequest) -> Product:
    """What follows from each committed spec."""
    return made(request.param)


@lru_cache(maxsize=4)
def _lowered(path: str) -> Lowered:
    product = made(Path(path))
    stem = product.source.stem
    return lower(product.module, product.plan, path=stem, stem=stem)


@lru_cache(maxsize=4)
def _machine_code(path: str) -> str:
    cubin = _lowered(path).artifacts["cubin"]
    key = key_of(("sass", sha256(cubin).hexdigest()))
    return cached(key, lambda: {"sass": disassemble(cubin)}, lambda files: files["sass"].decode())


# No fixtures of the session: several files have a `product` of their own, and one of theirs would outlive it.


@pytest.fixture
def lowered(product: Product) -> Lowered:
    """The kernel of a committed spec, compiled once."""
    return _lowered(product.source.path)


@pytest.fixture
def sass(product: Product) -> str:
    """Its machine code."""
    return _machine_code(product.source.path)
