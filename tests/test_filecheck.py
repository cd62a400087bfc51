"""The FileCheck of the tests: it accepts what is promised, in order, and says where a promise breaks."""

from __future__ import annotations

import re

import pytest
from filecheck import filecheck, read_directives

pytestmark = pytest.mark.quick

TEXT = """\
%0 = alloc 4
init %0, 2
init %0, 1
wait   %0
%7 = dot %0
done %7
"""


def check(directives: str, values: dict[str, object] | None = None) -> None:
    filecheck(TEXT, read_directives(directives, "t.check"), values)


@pytest.mark.parametrize(
    "directives",
    [
        "CHECK: alloc\nCHECK: dot",
        "comments are ignored, as CHECK is here\nCHECK: init",
        "CHECK: alloc 4\nCHECK-NEXT: init %0, 2\nCHECK-NEXT: init %0, 1",
        "CHECK-COUNT-2: init\nCHECK-NOT: init\nCHECK: dot",
        "CHECK: wait %0",  # one blank stands for three
        "CHECK: {{%[0-9]+}} = dot",
        "CHECK: [[D:%[0-9]+]] = dot\nCHECK-NEXT: done [[D]]",
        "CHECK: init %0, [[COUNT]]\nCHECK: wait",
        "CHECK: done\nCHECK-NOT: wait",
        "CHECK-NOT: done\nCHECK: dot",
    ],
)
def test_what_holds_passes(directives: str) -> None:
    check(directives, {"COUNT": 2})


@pytest.mark.parametrize(
    ("directives", "message"),
    [
        ("CHECK: dot\nCHECK: wait", "out of order"),
        ("CHECK: store", "t.check:1: CHECK: store\nmatches nothing from line 1 on:\n     1 | %0 = alloc 4\n"),
        ("CHECK: init\nCHECK: init\n\nCHECK: init", "t.check:4: CHECK: init\nmatches nothing from line 3 on"),
        ("CHECK: alloc\nCHECK-NEXT: wait", "nothing on line 2:\n     1 | %0 = alloc 4\n"),
        ("CHECK: alloc\nCHECK-NEXT: wait", "It matches later, on line 4."),
        ("CHECK: done\nCHECK-NEXT: done", "matches nothing on line 7"),
        ("CHECK-COUNT-3: init", "t.check:1: CHECK: init"),
        ("CHECK-NOT: init\nCHECK: dot", "t.check:1: CHECK-NOT: init\nmatches line 2:\n     2 | init %0, 2"),
        ("CHECK: alloc\nCHECK-NOT: done", "matches line 6"),
        ("CHECK: [[D:%[0-9]+]] = alloc\nCHECK: done [[D]]", "CHECK: done [[D]]"),
    ],
)
def test_what_does_not_hold_is_shown_with_its_place(directives: str, message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        check(directives)


@pytest.mark.parametrize(
    ("directives", "message"),
    [
        ("no directive at all", "t.check: holds no directives"),
        ("CHECK-SAME: x", "t.check:1: there is no directive CHECK-SAME"),
        ("CHECK-COUNT: x", "t.check:1: there is no directive CHECK-COUNT"),
        ("CHECK-NEXT-2: x", "t.check:1: there is no directive CHECK-NEXT-2"),
        ("CHECK:", "t.check:1: the pattern is empty"),
        ("CHECK-NEXT: x", "t.check:1: CHECK-NEXT needs a CHECK before it"),
        ("CHECK: [[D]]", "t.check:1: CHECK: [[D]]: [[D]] has no value"),
    ],
)
def test_a_broken_directive_is_no_silent_success(directives: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check(directives)
