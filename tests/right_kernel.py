"""Specs of every kind, and right kernels for them that compute on the CPU, for tests to spoil."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from gemmgen.module import Matmul
from gemmgen.problem.dtype import (
    TORCH_DTYPES,
    DType,
    rounded,
    rounded_to_tf32,
)
from gemmgen.spec import Spec

CPU = torch.device("cpu")
SHAPE = (40, 48, 64)
KINDS: tuple[tuple[DType, DType], ...] = (
    ("bf16", "bf16"),
    ("fp16", "fp16"),
    ("tf32", "fp32"),
    ("e4m3", "bf16"),
    ("e4m3", "e4m3"),
    ("e5m2", "e5m2"),
    ("int8", "int32"),
    ("int8", "fp16"),
    ("int8", "e4m3"),
)
"""Of A and B, and of D."""
CHAINS: tuple[tuple[str, ...], ...] = (
    ("row_scale", "column_scale", "column_bias", "gelu_tanh"),
    ("tensor_scale", "residual", "relu"),
    ("column_bias", "silu"),
    ("residual", "row_bias", "gelu_erf", "tensor_scale"),
)
FLOATS = tuple(kind for kind in KINDS if kind[0] != "int8")


def spec_of(
    a: str = "bf16",
    d: str = "bf16",
    *ops: str,
    b: str = "",
    c: str = "",
    majors: str = "kk",
    accumulator: str | None = None,
    promote_k: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
) -> Spec:
    major = {"k": "k", "m": "mn"}
    operands: dict[str, object] = {
        "a": {"dtype": a, "major": major[majors[0]]},
        "b": {"dtype": b or a, "major": major[majors[1]]},
        "d": {"dtype": d},
    }
    if c or "residual" in ops:
        operands["c"] = {"dtype": c or "fp32"}
    return Spec.model_validate(
        {
            "title": "t",
            "target": "h200",
            "operands": operands,
            "accumulator": accumulator,
            "mma": {"promote_k": promote_k},
            "epilogue": {"alpha": alpha, "beta": beta, "ops": list(ops)},
        }
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def written_out(spec: Spec, a: Tensor, b: Tensor, **extras: Tensor) -> Tensor:
    """What the spec says, word for word and in fp32 where a kernel would be."""
    if spec.operands.a.dtype == "tf32":
        a, b = rounded_to_tf32(a), rounded_to_tf32(b)
    x = (a.double() @ b.double()).float()
    if spec.epilogue.alpha is not None:
        x = spec.epilogue.alpha * x
    if "c" in extras and "residual" not in spec.epilogue.ops:
        x = x + (1.0 if spec.epilogue.beta is None else spec.epilogue.beta) * extras["c"].float()
    functional = torch.nn.functional
    operations: dict[str, Callable[[], Tensor]] = {
        "tensor_scale": lambda: x * extras["tensor_scale"].item(),
        "row_scale": lambda: x * extras["row_scale"].unsqueeze(1),
        "column_scale": lambda: x * extras["column_scale"],
        "row_bias": lambda: x + extras["row_bias"].float().unsqueeze(1),
        "column_bias": lambda: x + extras["column_bias"].float(),
        "residual": lambda: x + extras["c"].float(),
        "relu": lambda: functional.relu(x),
        # In fp32 torch's CPU kernel makes 0 of -inf; its CUDA kernel makes NaN, as both do in float64.
        "gelu_tanh": lambda: functional.gelu(x.double(), approximate="tanh").float(),
        "gelu_erf": lambda: functional.gelu(x.double()).float(),
        "silu": lambda: functional.silu(x.double()).float(),
    }
    for op in spec.epilogue.ops:
        x = operations[op]()
    return x


def kernel(spec: Spec, spoil: Callable[[Tensor], Tensor] = lambda x: x) -> Matmul:
    """A right ``matmul``, but for what spoils its fp32 result; it takes exactly the keywords of its spec."""
    d_dtype = TORCH_DTYPES[spec.operands.d.dtype]
    expected = {op for op in spec.epilogue.ops if op.endswith(("scale", "bias"))}
    expected |= {"c"} if spec.operands.c else set()

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor) -> Tensor:
        assert set(extras) == expected
        if out is not None and out.shape[1] * out.element_size() % 16:
            raise ValueError("out must have rows of whole 16-byte units")
        d = spoil(written_out(spec, a, b, **extras))
        unit = 16 // d_dtype.itemsize
        m, n = d.shape
        own = torch.empty(m, -(-n // unit) * unit, dtype=d_dtype)[:, :n]
        return (own if out is None else out).copy_(rounded(d, d_dtype))

    return matmul


def module_of(matmul: Matmul) -> ModuleType:
    module = ModuleType("fake")
    module.__dict__["matmul"] = matmul
    return module
