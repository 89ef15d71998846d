"""Count a model's parameters by part, and what each chip of a layout holds of them."""

import math
from dataclasses import dataclass
from functools import lru_cache

from whet.planner.layout import Layout
from whet.planner.model_shape import ModelShape


@dataclass(frozen=True)
class Count:
    """Count parameters by how a layout divides them.

    Attributes:
        matrices: What tensor-parallel chips share, with the biases of its outputs.
        copied: What each tensor-parallel chip holds whole: norms, routers, biases of sums, positions.
        experts: Routed experts, which expert-parallel and tensor-parallel chips share.
    """

    matrices: int = 0
    copied: int = 0
    experts: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.matrices + other.matrices, self.copied + other.copied, self.experts + other.experts)

    def times(self, number: int) -> "Count":
        return Count(self.matrices * number, self.copied * number, self.experts * number)

    @property
    def total(self) -> int:
        return self.matrices + self.copied + self.experts

    def held(self, layout: Layout) -> tuple[float, float]:
        """Return what one chip holds before ZeRO divides it: dense parameters, and parameters of routed experts."""
        return (
            self.matrices / layout.tensor + self.copied,
            self.experts / (layout.tensor * layout.expert),
        )


def norm_size(shape: ModelShape) -> int:
    return shape.hidden_size * (2 if shape.norm == "layer" else 1)


def query_size(shape: ModelShape) -> int:
    """Return the width of a token's queries over all heads."""
    if shape.latent is not None:
        return shape.num_heads * (shape.latent.plain_size + shape.latent.rotary_size)
    return shape.num_heads * shape.head_size


def key_value_size(shape: ModelShape) -> int:
    """Return the width of a token's keys and values together, as attention reads them."""
    if shape.latent is not None:
        return query_size(shape) + shape.num_heads * shape.latent.value_size
    return 2 * shape.num_kv_heads * shape.head_size


def value_size(shape: ModelShape) -> int:
    """Return the width of attention's output over all heads, before its last matrix."""
    return shape.num_heads * (shape.latent.value_size if shape.latent is not None else shape.head_size)


@lru_cache(maxsize=64)
def attention_matrices(shape: ModelShape) -> tuple[tuple[int, int], ...]:
    """Return the matrices of attention as (inputs, outputs); the second of a pair is divided by tensor parallelism."""
    hidden, latent = shape.hidden_size, shape.latent
    if latent is None:
        return (
            (hidden, query_size(shape)),
            (hidden, key_value_size(shape)),
            (value_size(shape), hidden),
        )
    queries = (
        ((hidden, latent.query_rank), (latent.query_rank, query_size(shape)))
        if latent.query_rank
        else ((hidden, query_size(shape)),)
    )
    return (
        *queries,
        (hidden, latent.rank + latent.rotary_size),
        (latent.rank, shape.num_heads * (latent.plain_size + latent.value_size)),
        (value_size(shape), hidden),
    )


def mlp_parameters(hidden: int, inner: int, is_gated: bool) -> int:
    return hidden * inner * (3 if is_gated else 2)


def seen_width(shape: ModelShape, is_sparse: bool) -> int:
    """Return the inner width of what a token meets of a layer's MLP, or of its experts together."""
    if is_sparse and shape.experts is not None:
        return shape.experts.intermediate_size * (shape.experts.per_token + shape.experts.shared)
    return shape.intermediate_size


@lru_cache(maxsize=256)
def layer_count(shape: ModelShape, is_sparse: bool) -> Count:
    """Count the parameters of one layer, with a mixture of experts or with one MLP."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    matrices = sum(rows * columns for rows, columns in attention_matrices(shape))
    copied = 2 * norm_size(shape)
    if shape.latent is not None:
        copied += shape.latent.query_rank + shape.latent.rank
    experts = 0
    if shape.has_biases:
        matrices += query_size(shape) + key_value_size(shape)
        copied += hidden
    if is_sparse and shape.experts is not None:
        one = mlp_parameters(hidden, shape.experts.intermediate_size, shape.is_gated)
        experts = one * shape.experts.number
        matrices += one * shape.experts.shared
        copied += hidden * shape.experts.number
    else:
        matrices += mlp_parameters(hidden, inner, shape.is_gated)
        if shape.has_biases:
            matrices += inner * (2 if shape.is_gated else 1)
            copied += hidden
    return Count(matrices, copied, experts)


def num_sparse_layers(shape: ModelShape) -> int:
    return 0 if shape.experts is None else max(0, shape.num_layers - shape.experts.num_dense_layers)


def embedding_count(shape: ModelShape) -> Count:
    return Count(shape.vocab_size * shape.hidden_size, shape.num_positions * shape.hidden_size)


def head_count(shape: ModelShape) -> Count:
    """Count what stands behind the last layer: a norm, the matrix of logits, and the layers for later tokens."""
    hidden = shape.hidden_size
    extra = layer_count(shape, shape.experts is not None) + Count(2 * hidden * hidden, 3 * norm_size(shape))
    own = Count(0 if shape.is_tied else shape.vocab_size * hidden, norm_size(shape))
    return own + extra.times(shape.num_extra_layers)


@lru_cache(maxsize=64)
def model_count(shape: ModelShape) -> Count:
    """Count the parameters of the whole model."""
    sparse = num_sparse_layers(shape)
    layers = layer_count(shape, True).times(sparse) + layer_count(shape, False).times(shape.num_layers - sparse)
    return embedding_count(shape) + layers + head_count(shape)


def head_layers(shape: ModelShape) -> float:
    """Return how many layers the logits, and the layers for later tokens, weigh by the matrices that a token meets."""
    layers = shape.num_layers + shape.num_extra_layers
    logits = (1 + shape.num_extra_layers) * shape.vocab_size * shape.hidden_size
    return logits / ((active_parameters(shape) - logits) / layers) + shape.num_extra_layers


@lru_cache(maxsize=4096)
def stage_layers(shape: ModelShape, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage: equal where they divide, else fewer on the last, with the logits."""
    if stages == 1 or shape.num_layers % stages == 0:
        return (shape.num_layers // stages,) * stages
    head = head_layers(shape)
    least = shape.num_layers // stages
    fewest = max(0, shape.num_layers - (least + 2) * (stages - 1))

    def slowest(last: int) -> float:
        return max(math.ceil((shape.num_layers - last) / (stages - 1)), last + head)

    last = min(range(fewest, least + 1), key=lambda number: (slowest(number), -number))
    each, more = divmod(shape.num_layers - last, stages - 1)
    # The first stage has the embeddings beside its layers, so it is relieved first.
    return (each,) * (stages - 1 - more) + (each + 1,) * more + (last,)


@lru_cache(maxsize=4096)
def stage_kinds(shape: ModelShape, stages: int) -> tuple[tuple[int, int], ...]:
    """Return how many layers of each pipeline stage have one MLP, and how many have a mixture of experts."""
    dense = shape.num_layers - num_sparse_layers(shape)
    kinds = []
    before = 0
    for layers in stage_layers(shape, stages):
        plain = max(0, min(dense, before + layers) - before)
        kinds.append((plain, layers - plain))
        before += layers
    return tuple(kinds)


@lru_cache(maxsize=4096)
def stage_counts(shape: ModelShape, stages: int) -> tuple[Count, ...]:
    """Count the parameters of each pipeline stage. A tied matrix of logits is held by the last stage once more."""
    counts = []
    for index, (plain, sparse) in enumerate(stage_kinds(shape, stages)):
        count = layer_count(shape, False).times(plain) + layer_count(shape, True).times(sparse)
        if index == 0:
            count = count + embedding_count(shape)
        if index == stages - 1:
            count = count + head_count(shape)
            if shape.is_tied and stages > 1:
                count = count + Count(shape.vocab_size * shape.hidden_size)
        counts.append(count)
    return tuple(counts)


@lru_cache(maxsize=64)
def active_parameters(shape: ModelShape) -> int:
    """Count the parameters of matrices that a token meets, once each, without the embeddings' table."""
    routed = 0
    if shape.experts is not None:
        one = mlp_parameters(shape.hidden_size, shape.experts.intermediate_size, shape.is_gated)
        sparse = num_sparse_layers(shape) + shape.num_extra_layers
        routed = sparse * (shape.experts.number - shape.experts.per_token) * one
    tied = shape.vocab_size * shape.hidden_size if shape.is_tied else 0
    table = embedding_count(shape).total
    later = shape.num_extra_layers * shape.vocab_size * shape.hidden_size
    return model_count(shape).total - routed - table + tied + later
