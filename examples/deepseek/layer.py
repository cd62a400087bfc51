"""A decoder layer of DeepSeek-V3: its fp8 linears are calls of `linears`, and torch computes the rest.

The rest is attention over the tokens of the call, norms, the router, and the quantisation of activations:
each linear reads e4m3 with a scale for 128 elements of a row. The attention has no cache, and rotary
embeddings without the scaling for long contexts (YaRN).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from examples.deepseek.checkpoint import Layer, Sizes
from examples.deepseek.linears import Linears, Quantised, quantise
from examples.moe.experts import Pairs, sort_by_expert

ROPE_BASE = 10000.0
NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class Result:
    """The output of a layer, and what was computed on the way."""

    attended: Tensor
    """[tokens, hidden]: x and the attention's output."""
    expert: Tensor
    """The experts of each token, int64 [tokens, top_k]."""
    d: Tensor
    """[tokens, hidden]: the output."""


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return the RMS norm of rows [rows, width] in their type, computed in fp32 or more."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return functional.rms_norm(wide, x.shape[1:], weight.to(wide.dtype), NORM_EPSILON).to(x.dtype)


def rotated(x: Tensor) -> Tensor:
    """Return the rotary embedding of x [tokens, heads, width]: the row of a token is its position."""
    tokens, _, width = x.shape
    wide = torch.promote_types(x.dtype, torch.float32)
    of_pair = ROPE_BASE ** (-torch.arange(0, width, 2, device=x.device, dtype=wide) / width)
    angle = torch.arange(tokens, device=x.device, dtype=wide)[:, None, None] * of_pair
    first, second = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
    turned = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
    return torch.stack(turned, -1).flatten(-2).to(x.dtype)


def attention(q: Tensor, kv: Tensor, k_rope: Tensor, sizes: Sizes) -> Tensor:
    """Return the causal attention [tokens, heads * value] of one sequence.

    `q` [tokens, heads * (nope + rope)] and `kv` [tokens, heads * (nope + value)] have the columns of one head
    after the other. `k_rope` [tokens, rope] is a part of each head of K.
    """
    q_nope, q_rope = q.unflatten(1, (sizes.heads, -1)).split([sizes.nope, sizes.rope], -1)
    k_nope, v = kv.unflatten(1, (sizes.heads, -1)).split([sizes.nope, sizes.value], -1)
    k_rope = rotated(k_rope[:, None]).expand(-1, sizes.heads, -1)
    heads = torch.cat([q_nope, rotated(q_rope)], -1), torch.cat([k_nope, k_rope], -1), v
    q, k, v = (each.transpose(0, 1)[None] for each in heads)
    scale = (sizes.nope + sizes.rope) ** -0.5
    found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return found[0].transpose(0, 1).flatten(1)


def scores_of(x: Tensor, layer: Layer) -> Tensor:
    """Return the score of each expert [tokens, experts], from 0 to 1, in fp32 or more."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.sigmoid(functional.linear(x.to(wide), layer.router.to(wide)))


def chosen(scores: Tensor, bias: Tensor, sizes: Sizes) -> Tensor:
    """Return the experts of each token, int64 [tokens, top_k], from the scores [tokens, experts].

    The two best experts of a group are its score. A token's experts are the best of its best groups.
    """
    of_groups = (scores + bias).unflatten(1, (sizes.router_groups, -1))
    best = of_groups.topk(2, dim=-1).values.sum(-1).topk(sizes.top_groups, dim=-1).indices
    outside = torch.ones_like(of_groups[..., 0], dtype=torch.bool).scatter(1, best, False)
    within = of_groups.masked_fill(outside[..., None], -torch.inf).flatten(1)
    return within.topk(sizes.top_k, dim=-1).indices


def weights_of(scores: Tensor, expert: Tensor, sizes: Sizes) -> Tensor:
    """Return the weights [tokens, top_k] of the experts of each token, without the router's bias."""
    weight = scores.gather(1, expert)
    return weight / weight.sum(1, keepdim=True) * sizes.weight


def combine(of_pairs: Tensor, pairs: Pairs, c: Tensor) -> Tensor:
    """Return c [tokens, hidden] plus the sum of the rows of each token, which is rounded once."""
    wide = torch.promote_types(c.dtype, torch.float32)
    return (of_pairs[pairs.place].sum(dim=1, dtype=wide) + c).to(c.dtype)


@dataclass(frozen=True)
class Decoder:
    """A decoder layer with the experts of a mixture."""

    layer: Layer
    sizes: Sizes
    linears: Linears
    quantise: Callable[[Tensor], Quantised] = quantise

    def __call__(self, x: Tensor, expert: Tensor | None = None) -> Result:
        """Return the output of the layer for x [tokens, hidden].

        Without `expert`, int64 [tokens, top_k], the router chooses the experts. A reference takes the experts
        of the result to compare: if scores differ in their last bits, a router may choose others.
        """
        attended = self.attend(x)
        rows = norm(attended, self.layer.norms["post_attention_layernorm"])
        scores = scores_of(rows, self.layer)
        if expert is None:
            expert = chosen(scores, self.layer.router_bias, self.sizes)
        weight = weights_of(scores, expert, self.sizes)
        return Result(attended, expert, self.feed_forward(attended, rows, weight, expert))

    def attend(self, x: Tensor) -> Tensor:
        """Return x [tokens, hidden] plus the attention's output."""
        sizes, norms, linears, quantise = self.sizes, self.layer.norms, self.linears, self.quantise
        latent = linears("qkv_a", quantise(norm(x, norms["input_layernorm"])))
        q, kv, k_rope = latent.split([sizes.q_rank, sizes.kv_rank, sizes.rope], dim=1)
        q = linears("q_b", quantise(norm(q, norms["self_attn.q_a_layernorm"])))
        kv = linears("kv_b", quantise(norm(kv, norms["self_attn.kv_a_layernorm"])))
        return linears("o", quantise(attention(q, kv, k_rope, sizes)), c=x)

    def feed_forward(self, attended: Tensor, rows: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
        """Return `attended` plus the results of the chosen experts and of the shared one for rows.

        All are [tokens, hidden]; `weight` and `expert` [tokens, top_k] are the router's.
        """
        pairs = sort_by_expert(weight.float(), expert, self.sizes.experts)
        quantised = self.quantise(rows)
        h = self.linears.up("experts_up", quantised[pairs.token], offs=pairs.offs)
        d = self.linears("experts_down", h, offs=pairs.offs, row_scale=pairs.weight)
        h = self.linears.up("shared_up", quantised)
        return self.linears("shared_down", h, c=combine(d, pairs, attended))
