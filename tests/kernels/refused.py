"""Kernels that Triton refuses, each at a line that a comment marks."""

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportUndefinedVariable=false
# ruff: noqa: F821
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def added(
    layout: gl.constexpr,
):
    return gl.arange(0, 16, layout=layout) + gl.arange(0, 32, layout=layout)  # in a function


@gluon.jit
def in_a_function(pointer):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    added(layout)  # the call


@gluon.jit
def a_name(pointer):
    value = pointer + nothing  # a name
    gl.store(value, 1.0)


@gluon.jit
def an_assertion(pointer):
    gl.static_assert(gl.num_warps() == 8, "eight warps are needed")  # an assertion


@gluon.jit
def a_layout(pointer):
    layout: gl.constexpr = gl.BlockedLayout([1], [16], [4], [0])
    gl.store(pointer + gl.arange(0, 64, layout=layout), 1.0)  # a layout
