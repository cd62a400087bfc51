"""The fp8 weights of a DeepSeek-V3 layer, by the names and in the layouts of its checkpoint.

The checkpoint stores a linear as two tensors:

    NAME.weight             e4m3 [N, K]
    NAME.weight_scale_inv   fp32 [ceil(N / 128), ceil(K / 128)]: the factor of each 128 x 128 elements

The generated kernels read both as they are. Two linears with one input, such as gate and up, become one
tensor with the rows of both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128
"""Rows and columns of a weight that share a scale, and elements of an activation that do."""
LARGEST = torch.finfo(torch.float8_e4m3fn).max


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer; by default, of DeepSeek-V3."""

    hidden: int = 7168
    q_rank: int = 1536
    kv_rank: int = 512
    heads: int = 128
    nope: int = 128
    """Elements of a head of Q and K that have no rotary embedding."""
    rope: int = 64
    """Elements of a head of Q and K that have a rotary embedding; K has the same ones for all heads."""
    value: int = 128
    """Elements of a head of V."""
    intermediate: int = 2048
    """Columns between the up and down projection of an expert, also of the shared one."""
    experts: int = 256
    top_k: int = 8
    router_groups: int = 8
    """Groups that the router divides the experts into."""
    top_groups: int = 4
    """Groups that a token's experts are of."""
    weight: float = 2.5
    """Sum of the weights of a token's experts."""

    def linears(self) -> dict[str, tuple[int, int]]:
        """Return N and K of the dense linears by their names in the checkpoint."""
        head = self.nope + self.rope
        expert = "mlp.shared_experts"
        return {
            "self_attn.q_a_proj": (self.q_rank, self.hidden),
            "self_attn.q_b_proj": (self.heads * head, self.q_rank),
            "self_attn.kv_a_proj_with_mqa": (self.kv_rank + self.rope, self.hidden),
            "self_attn.kv_b_proj": (self.heads * (self.nope + self.value), self.kv_rank),
            "self_attn.o_proj": (self.hidden, self.heads * self.value),
            **{f"{expert}.{part}": shape for part, shape in self.expert().items()},
        }

    def expert(self) -> dict[str, tuple[int, int]]:
        """Return N and K of the linears of an expert by their names in the checkpoint."""
        up, down = (self.intermediate, self.hidden), (self.hidden, self.intermediate)
        return {"gate_proj": up, "up_proj": up, "down_proj": down}

    def norms(self) -> dict[str, int]:
        """Return the lengths of the weights of norms by their names in the checkpoint."""
        return {
            "input_layernorm": self.hidden,
            "self_attn.q_a_layernorm": self.q_rank,
            "self_attn.kv_a_layernorm": self.kv_rank,
            "post_attention_layernorm": self.hidden,
        }


@dataclass(frozen=True)
class Weight:
    """An fp8 weight, or the stacked weights of all experts."""

    values: Tensor
    """e4m3 [N, K], or [experts, N, K]."""
    scales: Tensor
    """fp32 [ceil(N / 128), ceil(K / 128)], or that for each expert, in rows as `laid_out` returns them."""


@dataclass(frozen=True)
class Layer:
    """The weights of a layer."""

    linears: Mapping[str, Weight]
    """The weights of the linears by the names in linears.py."""
    norms: Mapping[str, Tensor]
    """The weights of norms by their names in the checkpoint, bf16."""
    router: Tensor
    """bf16 [experts, hidden]."""
    router_bias: Tensor
    """fp32 [experts]: added to scores for the choice of experts, and not to their weights."""


def laid_out(scales: Tensor) -> Tensor:
    """Return scales [..., rows, blocks of K] in rows of whole 16-byte units, as the kernels read them.

    A tensor of the checkpoint is returned as it is if K / 128 is a multiple of 4, as in all linears of
    DeepSeek-V3. `matmul` refuses scales in other rows; `arrange_scales` of a module does the same as this.
    """
    *rows, blocks = scales.shape
    if blocks % 4 == 0 and scales.is_contiguous():
        return scales
    return scales.new_zeros(*rows, -(-blocks // 4) * 4)[..., :blocks].copy_(scales)


def joined(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Weight:
    """Return one weight with the rows of several linears of a checkpoint, one linear after the other.

    A block of scales belongs to one linear: each except the last one has a multiple of 128 rows.
    """
    values = [tensors[f"{name}.weight"] for name in names]
    scales = [tensors[f"{name}.weight_scale_inv"] for name in names]
    if len(names) == 1:
        return Weight(values[0], laid_out(scales[0]))
    assert all(len(each) % BLOCK == 0 for each in values[:-1])
    return Weight(torch.cat(values), laid_out(torch.cat(scales)))


def stacked(tensors: Mapping[str, Tensor], experts: int, parts: Sequence[str]) -> Weight:
    """Return the weights of all experts as one tensor, each with the rows of these linears."""
    each = [joined(tensors, [f"mlp.experts.{number}.{part}" for part in parts]) for number in range(experts)]
    return Weight(
        torch.stack([weight.values for weight in each]), laid_out(torch.stack([w.scales for w in each]))
    )


def read(tensors: Mapping[str, Tensor], sizes: Sizes) -> Layer:
    """Return the weights of a layer from the tensors of a checkpoint.

    The names of tensors begin after `model.layers.NUMBER.`, as in `self_attn.o_proj.weight`.
    """
    attention, shared, up = "self_attn", "mlp.shared_experts", ("gate_proj", "up_proj")
    of = functools.partial(joined, tensors)
    linears = {
        "qkv_a": of([f"{attention}.q_a_proj", f"{attention}.kv_a_proj_with_mqa"]),
        "q_b": of([f"{attention}.q_b_proj"]),
        "kv_b": of([f"{attention}.kv_b_proj"]),
        "o": of([f"{attention}.o_proj"]),
        "shared_up": of([f"{shared}.{part}" for part in up]),
        "shared_down": of([f"{shared}.down_proj"]),
        "experts_up": stacked(tensors, sizes.experts, up),
        "experts_down": stacked(tensors, sizes.experts, ["down_proj"]),
    }
    norms = {name: tensors[f"{name}.weight"] for name in sizes.norms()}
    return Layer(linears, norms, tensors["mlp.gate.weight"], tensors["mlp.gate.e_score_correction_bias"])


def quantised_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight [N, K] as a checkpoint has it: e4m3 [N, K], and the scales of its blocks in fp32."""
    n, k = weight.shape
    rows, columns = -(-n // BLOCK), -(-k // BLOCK)
    padded = weight.new_zeros(rows * BLOCK, columns * BLOCK)
    padded[:n, :k] = weight
    blocks = padded.view(rows, BLOCK, columns, BLOCK)
    scales = blocks.abs().amax((1, 3)).float() / LARGEST
    values = (blocks / scales[:, None, :, None]).view(padded.shape)[:n, :k]
    return values.to(torch.float8_e4m3fn).contiguous(), scales


def drawn(sizes: Sizes, device: str = "cuda", seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield random tensors of a checkpoint with their names. The variance of a weight is 1 / K."""
    generator = torch.Generator(device=device).manual_seed(seed)
    normal = functools.partial(torch.randn, generator=generator, device=device)
    linears = sizes.linears()
    for number in range(sizes.experts):
        linears |= {f"mlp.experts.{number}.{part}": shape for part, shape in sizes.expert().items()}
    for name, (n, k) in linears.items():
        values, scales = quantised_weight(normal(n, k) / k**0.5)
        yield f"{name}.weight", values
        yield f"{name}.weight_scale_inv", scales
    for name, length in sizes.norms().items():
        yield f"{name}.weight", (1 + normal(length) / 10).bfloat16()
    yield "mlp.gate.weight", (normal(sizes.experts, sizes.hidden) / sizes.hidden**0.5).bfloat16()
    yield "mlp.gate.e_score_correction_bias", normal(sizes.experts) / 10
