"""Specs of every kind, and right kernels for them that compute on the CPU, for tests to spoil."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from gemmgen.module import MatmulFunction
from gemmgen.numerics.encoding import TORCH_DTYPES, DType, rounded, rounded_to_tf32
from gemmgen.numerics.inputs import Inputs
from gemmgen.spec import Spec, SpecFile

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
SCALED: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "mxfp8": (("e4m3", "mxfp8"), ("e4m3", "mxfp8")),
    "mxfp8_e5m2": (("e5m2", "mxfp8"), ("e4m3", "mxfp8")),
    "mxfp4": (("e2m1", "mxfp4"), ("e2m1", "mxfp4")),
    "nvfp4": (("e2m1", "nvfp4"), ("e2m1", "nvfp4")),
    "mxfp8_by_mxfp4": (("e4m3", "mxfp8"), ("e2m1", "mxfp4")),
    "mxfp4_by_mxfp8": (("e2m1", "mxfp4"), ("e5m2", "mxfp8")),
}
"""Types of A and B, and how their blocks are scaled."""
VECTORS = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


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
    target: str = "",
) -> SpecFile:
    """A spec; `a` may be one of SCALED, which says what B is too."""
    major = {"k": "k", "m": "mn"}
    (a, a_format), (b, b_format) = SCALED.get(a, ((a, ""), (b or a, "")))
    operands: dict[str, object] = {
        "a": {"dtype": a, "major": major[majors[0]], "scale": {"format": a_format} if a_format else None},
        "b": {"dtype": b, "major": major[majors[1]], "scale": {"format": b_format} if b_format else None},
        "d": {"dtype": d},
    }
    if c or "residual" in ops:
        operands["c"] = {"dtype": c or "fp32"}
    return SpecFile.of(
        Spec.model_validate(
            {
                "title": "t",
                "target": target or ("b200" if a_format else "h200"),
                "operands": operands,
                "accumulator": accumulator,
                "mma": {"promote_k": promote_k},
                "epilogue": {"alpha": alpha, "beta": beta, "ops": list(ops)},
            }
        )
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(operand: Tensor, scales: Tensor | None, vector: int) -> Tensor:
    """A or B's transpose [rows, K] in float64: bytes unpacked, and each element times its block's scale."""
    if operand.dtype == torch.uint8:
        halves = torch.stack((operand & 0xF, operand >> 4), dim=2)
        operand = E2M1[halves.flatten(1).long()]
    operand = operand.double()
    if scales is not None:
        assert scales.shape == (operand.shape[0], -(-operand.shape[1] // vector))
        operand = operand * scales.double()[:, torch.arange(operand.shape[1]) // vector]
    return operand


def exact_operand(inputs: Inputs, spec: SpecFile, name: str) -> Tensor:
    """A or B's transpose [rows, K] of a block-scaled spec, in float64."""
    operand, stored = (spec.spec.operands.a, inputs.a) if name == "a" else (spec.spec.operands.b, inputs.b.T)
    assert operand.scale is not None
    return plain(stored, inputs.extras[f"{name}_scale"], VECTORS[operand.scale.format])


def pack_scales(scales: Tensor) -> Tensor:
    """As a Blackwell module's function of this name, element by element: (r, c) and where it lies."""
    rows, columns = scales.shape
    packed = torch.zeros(-(-rows // 128), -(-columns // 4), 512, dtype=torch.uint8)
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    packed[r // 128, c // 4, r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = scales.view(torch.uint8)
    return packed.view(1, packed.shape[0], packed.shape[1], 2, 256).view(scales.dtype)


def unpacked_scales(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Plain scales [rows, columns] of plain or packed ones."""
    if scales.dim() == 2:
        return scales
    assert scales.shape == (1, -(-rows // 128), -(-columns // 4), 2, 256)
    r, c = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    blocks = scales.view(torch.uint8).flatten(3)[0]
    return blocks[r // 128, c // 4, r % 32 * 16 + r % 128 // 32 * 4 + c % 4].view(scales.dtype)


def written_out(spec: SpecFile, a: Tensor, b: Tensor, **extras: Tensor) -> Tensor:
    """What the spec says, word for word and in fp32 where a kernel would be."""
    a_vector, b_vector = (
        VECTORS[operand.scale.format] if operand.scale else 0
        for operand in (spec.spec.operands.a, spec.spec.operands.b)
    )
    if spec.problem.a.dtype.name == "tf32":
        a, b = rounded_to_tf32(a), rounded_to_tf32(b)
    a, b = plain(a, extras.get("a_scale"), a_vector), plain(b.T, extras.get("b_scale"), b_vector).T
    x = (a.double() @ b.double()).float()
    if spec.spec.epilogue.alpha is not None:
        x = spec.spec.epilogue.alpha * x
    if "c" in extras and "residual" not in spec.problem.ops:
        x = x + (1.0 if spec.spec.epilogue.beta is None else spec.spec.epilogue.beta) * extras["c"].float()
    functional = torch.nn.functional
    slopes = {found.op: found.value for found in spec.problem.parameters}
    operations: dict[str, Callable[[], Tensor]] = {
        "tensor_scale": lambda: x * extras["tensor_scale"].item(),
        "row_scale": lambda: x * extras["row_scale"].unsqueeze(1),
        "column_scale": lambda: x * extras["column_scale"],
        "row_bias": lambda: x + extras["row_bias"].float().unsqueeze(1),
        "column_bias": lambda: x + extras["column_bias"].float(),
        "residual": lambda: x + extras["c"].float(),
        "relu": lambda: functional.relu(x),
        "leaky_relu": lambda: torch.where(x < 0, slopes["leaky_relu"] * x, x),
        # In fp32 torch's CPU kernel makes 0 of -inf; its CUDA kernel makes NaN, as both do in float64.
        "gelu_tanh": lambda: functional.gelu(x.double(), approximate="tanh").float(),
        "gelu_erf": lambda: functional.gelu(x.double()).float(),
        "silu": lambda: functional.silu(x.double()).float(),
    }
    for op in spec.problem.ops:
        x = operations[op]()
    return x


def kernel(spec: SpecFile, spoil: Callable[[Tensor], Tensor] = lambda x: x) -> MatmulFunction:
    """A right ``matmul``, but for what spoils its fp32 result; it takes exactly the keywords of its spec."""
    d_dtype = TORCH_DTYPES[spec.problem.d.name]
    expected = {op for op in spec.problem.ops if op.endswith(("scale", "bias"))}
    expected |= {"c"} if spec.spec.operands.c else set()
    expected |= {"a_scale"} if spec.spec.operands.a.scale else set()
    expected |= {"b_scale"} if spec.spec.operands.b.scale else set()

    def matmul(a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor) -> Tensor:
        assert set(extras) == expected
        if out is not None and out.shape[1] * out.element_size() % 16:
            raise ValueError("out must have rows of whole 16-byte units")
        k = a.shape[1] * (2 if a.dtype == torch.uint8 else 1)
        for name, rows, operand in (
            ("a_scale", a.shape[0], spec.spec.operands.a),
            ("b_scale", b.shape[1], spec.spec.operands.b),
        ):
            if operand.scale is not None:
                extras[name] = unpacked_scales(extras[name], rows, -(-k // VECTORS[operand.scale.format]))
        d = spoil(written_out(spec, a, b, **extras))
        unit = 16 // d_dtype.itemsize
        m, n = d.shape
        own = torch.empty(m, -(-n // unit) * unit, dtype=d_dtype)[:, :n]
        return (own if out is None else out).copy_(rounded(d, d_dtype))

    return matmul


def module_of(matmul: MatmulFunction) -> ModuleType:
    module = ModuleType("fake")
    module.__dict__.update(matmul=matmul, pack_scales=pack_scales)
    return module
