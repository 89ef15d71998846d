"""Count the operations of a model: of its matrices, of attention, in a step with and without what is computed again."""

from functools import lru_cache
from typing import Literal, NamedTuple

from whet.planner.layout import Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.parameters import (
    attention_matrices,
    mlp_parameters,
    num_sparse_layers,
    query_size,
    seen_width,
    value_size,
)


class Product(NamedTuple):
    """Describe one matrix product of a layer, for a token.

    Attributes:
        inputs: The width of what goes in.
        outputs: The width of what comes out.
        lies: How tensor-parallel chips hold what comes out: "divided", "whole" on each, or as the "stream" lies.
    """

    inputs: int
    outputs: int
    lies: Literal["divided", "whole", "stream"]


@lru_cache(maxsize=256)
def layer_products(shape: ModelShape, is_sparse: bool) -> tuple[Product, ...]:
    """Return a layer's products in the order in which it computes them; a token's experts count as one wide MLP."""
    hidden, inner, latent = shape.hidden_size, seen_width(shape, is_sparse), shape.latent
    *before, (value, _) = attention_matrices(shape)
    found = []
    for inputs, outputs in before:
        is_small = latent is not None and outputs in (latent.query_rank, latent.rank + latent.rotary_size)
        found.append(Product(inputs, outputs, "whole" if is_small else "divided"))
    if latent is None:  # keys and values are two products
        keys = found.pop()
        found += [keys._replace(outputs=keys.outputs // 2)] * 2
    found.append(Product(value, hidden, "stream"))
    if is_sparse and shape.experts is not None:
        found.append(Product(hidden, shape.experts.number, "whole"))
    found += [Product(hidden, inner, "divided")] * (2 if shape.is_gated else 1)
    return (*found, Product(inner, hidden, "stream"))


def seen_tokens(shape: ModelShape, sequence_length: int, causal: bool) -> float:
    """Return how many tokens a token's attention is computed with, on average over a row."""
    if shape.window is not None and shape.window < sequence_length:
        window = shape.window
        return window - window * (window - 1) / (2 * sequence_length) if causal else float(window)
    return (sequence_length + 1) / 2 if causal else float(sequence_length)


@lru_cache(maxsize=4096)
def attention_operations(shape: ModelShape, sequence_length: int, causal: bool) -> float:
    """Return the forward operations a token of one layer's scores and sums: two products with what the token sees."""
    return 2 * seen_tokens(shape, sequence_length, causal) * (query_size(shape) + value_size(shape))


@lru_cache(maxsize=4096)
def layer_operations(shape: ModelShape, is_sparse: bool) -> float:
    """Return the forward operations a token of one layer's matrices."""
    matrices = sum(rows * columns for rows, columns in attention_matrices(shape))
    experts = shape.experts
    if is_sparse and experts is not None:
        one = mlp_parameters(shape.hidden_size, experts.intermediate_size, shape.is_gated)
        matrices += one * (experts.per_token + experts.shared) + shape.hidden_size * experts.number
    else:
        matrices += mlp_parameters(shape.hidden_size, shape.intermediate_size, shape.is_gated)
    return 2.0 * matrices


@lru_cache(maxsize=4096)
def head_operations(shape: ModelShape) -> float:
    """Return the forward operations a token of the logits, without layers that predict later tokens."""
    return 2.0 * shape.vocab_size * shape.hidden_size


@lru_cache(maxsize=4096)
def extra_operations(shape: ModelShape, sequence_length: int, causal: bool) -> float:
    """Return the forward operations a token of the layers that predict later tokens, each with its own logits."""
    one = (
        layer_operations(shape, shape.experts is not None)
        + attention_operations(shape, sequence_length, causal)
        + 4.0 * shape.hidden_size**2
        + head_operations(shape)
    )
    return shape.num_extra_layers * one


@lru_cache(maxsize=4096)
def forward_operations(shape: ModelShape, sequence_length: int, causal: bool) -> float:
    """Return the forward operations a token of the whole model."""
    sparse = num_sparse_layers(shape)
    return (
        sparse * layer_operations(shape, True)
        + (shape.num_layers - sparse) * layer_operations(shape, False)
        + shape.num_layers * attention_operations(shape, sequence_length, causal)
        + head_operations(shape)
        + extra_operations(shape, sequence_length, causal)
    )


def model_operations(shape: ModelShape, work: Work, causal: bool = False) -> float:
    """Return the operations of a step, forward and backward, without what is computed again.

    Args:
        causal: Whether attention counts only what a token sees. Most papers count all pairs (Korthikanti et al., 2022).
    """
    return 3.0 * work.tokens * forward_operations(shape, work.sequence_length, causal)


def recomputed_share(shape: ModelShape, layout: Layout, is_sparse: bool) -> tuple[float, float]:
    """Return which share of a layer's matrices, and of its attention, backward computes again."""
    if layout.recompute == "full":
        return 1.0, 1.0
    if layout.recompute == "selective":
        return 0.0, 0.0 if layout.fused_attention else 1.0
    if layout.recompute == "operators":
        # Of queries, keys, values, output, gate, up and down, the second, fourth and sixth are computed again. Nothing
        # needs the last one.
        again = sum(one.inputs * one.outputs for one in layer_products(shape, is_sparse)[1:-1:2])
        return 2.0 * again / layer_operations(shape, is_sparse), 0.0
    return 0.0, 0.0


def step_operations(shape: ModelShape, layout: Layout, work: Work, causal: bool = False) -> float:
    """Return the operations of a step over all chips, with what backward computes again."""
    attention = attention_operations(shape, work.sequence_length, causal)
    sparse = num_sparse_layers(shape)
    again = 0.0
    for is_sparse, number in ((True, sparse), (False, shape.num_layers - sparse)):
        if number:
            matrices, inner = recomputed_share(shape, layout, is_sparse)
            again += number * (matrices * layer_operations(shape, is_sparse) + inner * attention)
    return model_operations(shape, work, causal) + work.tokens * again
