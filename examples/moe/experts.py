"""The experts of a mixture-of-experts layer: with two generated kernels, and with torch's grouped_mm.

The layer has these parts, and two versions share all of them except the MLP:

    route      router logits -> the experts and weights of each token
    sort       pairs of a token and one of its experts, sorted by expert
    gather     a row of x for each pair
    MLP        of each expert: silu(x @ gate) * (x @ up), then @ down, times the weight of the pair
    combine    the sum of the rows of each token

A third version has kernels that read and store rows by an index, and gathers nothing:

    route      as above
    index      for each pair, sorted by expert, its token and its place in the order of tokens
    MLP        of each expert: reads the token's row of x, and stores a row in its place
    combine    the sum of the rows of each token, which are neighbours

No part waits for the GPU on the host, so that a CUDA graph can hold the layer. No part uses atomics, so
that equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

MOST_DECODE_TOKENS = 64
"""Most tokens of a call that the kernels for decoding compute; those for prefill compute larger calls."""
Matmul = Callable[..., Tensor]
"""The `matmul` of a generated module."""


@dataclass(frozen=True)
class Weights:
    """The weights of all experts, as checkpoints have them."""

    gate_up: Tensor
    """[experts, 2 * intermediate, hidden]: of each expert the rows of the gate, then the rows of up."""
    down: Tensor
    """[experts, hidden, intermediate]."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of a token and one of its experts, sorted by expert."""

    token: Tensor
    """Token of each pair, int64 [pairs]."""
    weight: Tensor
    """Factor by which the router weights the pair, fp32 [pairs]."""
    place: Tensor
    """Position in the sorted order of each pair of each token, int64 [tokens, top_k]."""
    offs: Tensor
    """For each expert the end of its pairs in the sorted order, int32 [experts]."""


@dataclass(frozen=True)
class IndexedPairs:
    """Pairs of a token and one of its experts, sorted by expert, for kernels with an index."""

    token: Tensor
    """Token of each pair, int32 [pairs]: the row of x that the kernel reads."""
    place: Tensor
    """Position of each pair in the order of tokens, int32 [pairs]: the row that the kernel stores."""
    weight: Tensor
    """Factor by which the router weights the pair, fp32 [pairs]."""
    offs: Tensor
    """For each expert the end of its pairs in the sorted order, int32 [experts]."""


class Mlp(Protocol):
    """The MLP of all experts."""

    def __call__(self, rows: Tensor, pairs: Pairs) -> Tensor:
        """Return the weighted results [pairs, hidden] of rows [pairs, hidden] that are sorted by expert."""
        ...


def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the weights, fp32, and the experts, int64, of each token: both [tokens, top_k].

    `logits` are [tokens, experts]. The weights of a token add up to 1.
    """
    weight, expert = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    return weight / weight.sum(-1, keepdim=True), expert


def order_by_expert(expert: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return the pairs sorted by expert, int64 [pairs], and the end of each expert's, int32 [experts].

    `expert` [tokens, top_k] has the experts of each token. Its elements, row by row, are the pairs.
    """
    # torch sorts two bytes faster than eight. A stable order makes the result the same in each call.
    of_pairs, order = expert.flatten().to(torch.int16).sort(stable=True)
    numbers = torch.arange(experts, device=expert.device, dtype=torch.int16)
    # torch.bincount would wait for the GPU, which a CUDA graph cannot.
    return order, torch.searchsorted(of_pairs, numbers, right=True, out_int32=True)


def sort_by_expert(weight: Tensor, expert: Tensor, experts: int) -> Pairs:
    """Return the pairs of the tokens and their experts, both given as [tokens, top_k], sorted by expert."""
    top_k = expert.shape[1]
    order, offs = order_by_expert(expert, experts)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return Pairs(order // top_k, weight.flatten()[order], place.view(-1, top_k), offs)


def index_by_expert(weight: Tensor, expert: Tensor, experts: int) -> IndexedPairs:
    """Return the same pairs as `sort_by_expert`, for kernels with an index."""
    order, offs = order_by_expert(expert, experts)
    place = order.int()
    return IndexedPairs(place // expert.shape[1], place, weight.flatten()[order], offs)


def gather(x: Tensor, pairs: Pairs) -> Tensor:
    """Return the row of x [tokens, hidden] for each pair, [pairs, hidden]."""
    return x[pairs.token]


def combine(d: Tensor, pairs: Pairs) -> Tensor:
    """Return the sum [tokens, hidden] of the rows of each token from d [pairs, hidden]."""
    return d[pairs.place].sum(dim=1)


def combine_neighbours(d: Tensor, top_k: int) -> Tensor:
    """Return the sum [tokens, hidden] of the rows of each token from d [tokens * top_k, hidden]."""
    return d.unflatten(0, (len(d) // top_k, top_k)).sum(dim=1)


def layer(x: Tensor, logits: Tensor, mlp: Mlp, top_k: int) -> Tensor:
    """Return the layer's output [tokens, hidden] from x [tokens, hidden] and logits [tokens, experts]."""
    pairs = sort_by_expert(*route(logits, top_k), experts=logits.shape[1])
    return combine(mlp(gather(x, pairs), pairs), pairs)


@dataclass(frozen=True)
class Kernels:
    """The generated kernels for some numbers of tokens."""

    up: Matmul
    """silu(a @ gate) * (a @ up), with the columns of gate and up side by side in B."""
    down: Matmul
    """(a @ b) * row_scale."""


@dataclass(frozen=True)
class GeneratedMlp:
    """The MLP of all experts from two generated kernels."""

    weights: Weights
    decode: Kernels
    prefill: Kernels

    def kernels(self, pairs: Pairs) -> Kernels:
        """Return the kernels for this number of tokens."""
        return self.decode if len(pairs.place) <= MOST_DECODE_TOKENS else self.prefill

    def up(self, rows: Tensor, pairs: Pairs) -> Tensor:
        """Return the gated product [pairs, intermediate]."""
        return self.kernels(pairs).up(rows, self.weights.gate_up.mT, offs=pairs.offs)

    def down(self, h: Tensor, pairs: Pairs) -> Tensor:
        """Return the weighted results [pairs, hidden]."""
        down = self.kernels(pairs).down
        return down(h, self.weights.down.mT, row_scale=pairs.weight, offs=pairs.offs)

    def __call__(self, rows: Tensor, pairs: Pairs) -> Tensor:
        """Return the weighted results [pairs, hidden]."""
        return self.down(self.up(rows, pairs), pairs)


@dataclass(frozen=True)
class IndexedMlp:
    """The MLP of all experts from two generated kernels that read and store rows by an index."""

    weights: Weights
    decode: Kernels
    prefill: Kernels

    def kernels(self, tokens: int) -> Kernels:
        """Return the kernels for this number of tokens."""
        return self.decode if tokens <= MOST_DECODE_TOKENS else self.prefill

    def up(self, x: Tensor, pairs: IndexedPairs) -> Tensor:
        """Return the gated product [pairs, intermediate], sorted by expert."""
        up = self.kernels(len(x)).up
        return up(x, self.weights.gate_up.mT, offs=pairs.offs, a_rows=pairs.token)

    def down(self, h: Tensor, pairs: IndexedPairs, tokens: int) -> Tensor:
        """Return the weighted results [pairs, hidden] in the order of tokens."""
        down = self.kernels(tokens).down
        weight, offs = pairs.weight, pairs.offs
        return down(h, self.weights.down.mT, row_scale=weight, offs=offs, d_rows=pairs.place)

    def __call__(self, x: Tensor, pairs: IndexedPairs) -> Tensor:
        """Return the weighted results [pairs, hidden] in the order of tokens."""
        return self.down(self.up(x, pairs), pairs, len(x))


def layer_by_index(x: Tensor, logits: Tensor, mlp: IndexedMlp, top_k: int) -> Tensor:
    """Return the output of `layer` [tokens, hidden], by kernels that read and store rows by an index."""
    pairs = index_by_expert(*route(logits, top_k), experts=logits.shape[1])
    return combine_neighbours(mlp(x, pairs), top_k)


@dataclass(frozen=True)
class TorchMlp:
    """The MLP of all experts from torch's grouped_mm, as Hugging Face transformers calls it."""

    weights: Weights

    def up(self, rows: Tensor, pairs: Pairs) -> Tensor:
        """Return both products side by side, [pairs, 2 * intermediate]."""
        return functional.grouped_mm(rows, self.weights.gate_up.mT, offs=pairs.offs)

    def activation(self, products: Tensor) -> Tensor:
        """Return the gated product [pairs, intermediate]."""
        gate, up = products.chunk(2, dim=1)
        return functional.silu(gate) * up

    def down(self, h: Tensor, pairs: Pairs) -> Tensor:
        """Return the results without weights, [pairs, hidden]."""
        return functional.grouped_mm(h, self.weights.down.mT, offs=pairs.offs)

    def weigh(self, d: Tensor, pairs: Pairs) -> Tensor:
        """Return the weighted results [pairs, hidden]."""
        return d * pairs.weight.to(d.dtype)[:, None]

    def __call__(self, rows: Tensor, pairs: Pairs) -> Tensor:
        """Return the weighted results [pairs, hidden]."""
        return self.weigh(self.down(self.activation(self.up(rows, pairs)), pairs), pairs)


def reference(x: Tensor, logits: Tensor, weights: Weights, top_k: int) -> Tensor:
    """Return the layer's output in fp32, [tokens, hidden], expert by expert."""
    weight, expert = route(logits, top_k)
    total = torch.zeros_like(x, dtype=torch.float32)
    for number, (gate_up, down) in enumerate(zip(weights.gate_up, weights.down, strict=True)):
        token, choice = (expert == number).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ gate_up.float().T).chunk(2, dim=1)
        result = (functional.silu(gate) * up) @ down.float().T
        total.index_add_(0, token, result * weight[token, choice, None])
    return total
