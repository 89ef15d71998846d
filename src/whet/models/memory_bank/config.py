"""Read the config.json of a long-term-memory decoder: a Llama with attention within segments, and memories beyond them.

Sizes have the names of Llama's config, and memories those of the LTM Transformer's guide. Settings that would ask for
something that the model does not compute are refused.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from whet.models.config_file import HeadSize, Layers, Positive, Size, check_model_type, read_json, validated
from whet.models.decoder.config import DecoderConfig, fill_in_heads

Count = Annotated[int, Field(ge=0, lt=2**31)]
Granularity = Literal["none", "layer", "block"]

# Keys of the guide that the model does not compute, with the values that ask for nothing.
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "fp8_training": (False,),
    "transformer_engine": (False,),
    "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,),
    "quantization_config": (),
    "rope_scaling": (),
    "sliding_window": (),
    "attention_dropout": (0, 0.0),
}


class LtmConfig(BaseModel):
    """Hold the part of a config.json that decides what is computed, and how it is trained. Other keys are ignored.

    Attributes:
        intermediate_size: The inner width of the MLP. 0 leaves the MLP out.
        attention_block_size: The tokens of a segment. A token attends to its own segment alone.
        memory_slots: The slots of each layer's bank in a new state. 0 leaves the bank out.
        max_memory_slots: The most slots that a bank grows to. The weights hold a query for each.
        memory_compression_ratio: The width of a slot, and of the test-time memory, as a part of hidden_size.
        use_adaptive_compression: Whether a state's bank merges slots of nearly equal content after each write, and
            grows again where all are read. Training (`model.train()`, while gradients are recorded) leaves it out.
        compression_tolerance: The relative distance within which slots are merged.
        memory_update_interval: The segments from one write of the bank to the next.
        memory_layers: The layers that have the memories. None: all.
        test_time_memory: The depth of a memory that learns while it reads (Titans): linear, or an MLP of two layers.
        test_time_chunk: The tokens whose gradients are taken at the same weights of the test-time memory.
        test_time_heads: The parts of its width that have a test-time memory each.
        test_time_clip: The norm that a token's gradient is cut to.
        gradient_checkpointing_granularity: What backward computes again: nothing, each layer, or blocks of segments,
            between which only states are kept.
        checkpoint_segments: The segments of such a block. 0: the square root of their number.
        backpropagation_segments: The segments over which gradients flow back through the memories. 0: all.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: Literal["ltm"] = "ltm"
    hidden_act: Literal["silu"] = "silu"
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Count
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: HeadSize
    rope_theta: Positive = 10_000.0
    rms_norm_eps: Positive = 1e-6
    tie_word_embeddings: bool = False
    attention_block_size: Size = 256
    memory_slots: Count = 64
    min_memory_slots: Count
    max_memory_slots: Count
    memory_compression_ratio: Annotated[float, Field(gt=0, le=8)] = 1.0
    use_adaptive_compression: bool = False
    compression_tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.05
    memory_update_interval: Size = 1
    memory_layers: tuple[Count, ...] | None = None
    test_time_memory: Literal["none", "linear", "mlp"] = "none"
    test_time_chunk: Size = 16
    test_time_heads: Size = 1
    test_time_clip: Positive = 1.0
    gradient_checkpointing_granularity: Granularity = "none"
    checkpoint_segments: Count = 0
    backpropagation_segments: Count = 0

    @property
    def memory_width(self) -> int:
        return max(1, round(self.hidden_size * self.memory_compression_ratio))

    @property
    def span(self) -> int:
        """Return the tokens from one write of the bank to the next."""
        return self.attention_block_size * self.memory_update_interval

    def has_memory(self, layer: int) -> bool:
        return self.memory_layers is None or layer in self.memory_layers

    @cached_property
    def decoder(self) -> DecoderConfig:
        """Return the config of the same layers without memories, of which attention and MLP are built."""
        return DecoderConfig(
            model_type="llama",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=max(1, self.intermediate_size),
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            tie_word_embeddings=self.tie_word_embeddings,
            rope_parameters={"rope_theta": self.rope_theta},  # type: ignore[arg-type]
        )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, config: object) -> object:
        if not isinstance(config, dict):
            return config
        config = {key: value for key, value in config.items() if value is not None}
        for key, harmless in _REFUSED.items():
            if key in config and config[key] not in harmless:
                raise ValueError(f"{key}: an ltm model does not compute it; leave it out")
        fill_in_heads(config)
        slots = config.get("memory_slots", 64)
        if isinstance(slots, int):
            config.setdefault("min_memory_slots", min(slots, 1))
            config.setdefault("max_memory_slots", slots)
        return config

    @model_validator(mode="after")
    def _check(self) -> "LtmConfig":
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads is not a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise ValueError("head_dim is odd: rotary positions need an even number")
        if self.span >= 2**31:
            raise ValueError("attention_block_size times memory_update_interval is 2^31 tokens or more; take fewer")
        if not self.min_memory_slots <= self.memory_slots <= self.max_memory_slots:
            raise ValueError(
                f"memory_slots {self.memory_slots} is not within min_memory_slots {self.min_memory_slots} and "
                f"max_memory_slots {self.max_memory_slots}"
            )
        if not self.memory_slots and self.max_memory_slots:
            raise ValueError("memory_slots is 0, which leaves the bank out; set max_memory_slots to 0 too")
        if self.memory_slots and not self.min_memory_slots:
            raise ValueError("min_memory_slots is 0: a bank has at least one slot")
        if self.use_adaptive_compression and not self.memory_slots:
            raise ValueError("use_adaptive_compression needs a bank; set memory_slots")
        if any(layer >= self.num_hidden_layers for layer in self.memory_layers or ()):
            raise ValueError(f"memory_layers names layers beyond the {self.num_hidden_layers} of the model")
        if self.test_time_memory != "none" and self.memory_width % self.test_time_heads:
            raise ValueError(f"the memory's width {self.memory_width} is not a multiple of test_time_heads")
        if self.checkpoint_segments and self.gradient_checkpointing_granularity != "block":
            raise ValueError('checkpoint_segments needs gradient_checkpointing_granularity = "block"')
        if 0 < self.backpropagation_segments <= self.memory_update_interval and self.memory_slots:
            raise ValueError(
                f"backpropagation_segments {self.backpropagation_segments} lets no gradient reach what is written; set "
                f"more than memory_update_interval, {self.memory_update_interval}, or 0 for all"
            )
        return self


def read_config(directory: Path | str) -> LtmConfig:
    """Read the config.json of a directory.

    Raises:
        TargetError: It is missing, damaged, or of another family, or asks for what the model does not compute.
    """
    raw = read_json(directory)
    check_model_type(directory, raw, ("ltm",), "a long-term-memory decoder's is")
    return validated(directory, LtmConfig, raw)
