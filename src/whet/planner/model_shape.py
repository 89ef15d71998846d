"""Describe a language model by its sizes: what decides its parameters, operations and activations."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Experts(BaseModel):
    """Describe the layers of a mixture of experts.

    Attributes:
        number: The routed experts of a layer.
        per_token: How many of them see a token.
        shared: The experts of a layer that see every token.
        intermediate_size: The inner width of one expert.
        groups: The groups that the routed experts lie in.
        groups_per_token: Of how many of them a token sees experts.
        num_dense_layers: The first layers, which have one MLP of the model's intermediate_size instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1)
    per_token: int = Field(ge=1)
    shared: int = Field(default=0, ge=0)
    intermediate_size: int = Field(ge=1)
    groups: int = Field(default=1, ge=1)
    groups_per_token: int = Field(default=1, ge=1)
    num_dense_layers: int = Field(default=0, ge=0)


class LatentAttention(BaseModel):
    """Describe attention whose keys and values are made from one small vector a token (DeepSeek-AI, arXiv:2405.04434).

    Attributes:
        query_rank: The width of the queries' small vector; 0 where queries are made from the stream directly.
        rank: The width of the small vector of keys and values.
        rotary_size: The part of a head's queries and keys that is turned by the position.
        plain_size: The other part of them.
        value_size: The width of a head's values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query_rank: int = Field(ge=0)
    rank: int = Field(ge=1)
    rotary_size: int = Field(ge=0)
    plain_size: int = Field(ge=1)
    value_size: int = Field(ge=1)


class ModelShape(BaseModel):
    """Hold the sizes of a decoder.

    Attributes:
        name: What messages call it.
        intermediate_size: The inner width of the MLP of a dense layer.
        is_gated: Whether the MLP has a gate, and so three matrices.
        num_positions: The learned embeddings of positions; 0 for rotary angles.
        num_extra_layers: Layers behind the last one that predict later tokens, each with a matrix [2D, D] before it.
        drops: Whether the model is trained with dropout, which keeps masks.
        window: How many tokens a token sees at most; None for all before it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    is_gated: bool = True
    is_tied: bool = False
    has_biases: bool = False
    norm: Literal["rms", "layer"] = "rms"
    num_positions: int = Field(default=0, ge=0)
    drops: bool = False
    window: int | None = None
    experts: Experts | None = None
    latent: LatentAttention | None = None
    num_extra_layers: int = Field(default=0, ge=0)
