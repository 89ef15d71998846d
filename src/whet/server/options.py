"""Hold the options of an engine, and check them before a model is loaded."""

from dataclasses import dataclass
from typing import Literal, get_args

from whet.errors import OptionError
from whet.models.options import ServingOptions

DEFAULT_PORT = 8000
MOST_DRAFTS = 64  # at a time; kernels have room for more
MOST_RANKS = 64  # as in kernels/process_group/kernel.h
_LEAST = {
    "num_draft_tokens": 1,
    "max_num_seqs": 1,
    "max_batch_tokens": 1,
    "max_waiting": 0,
    "tensor_parallel_size": 1,
}
SpeculationKind = Literal["auto", "off", "ngram"]


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ServingOptions):
    """Hold the options of whet.Engine.

    Attributes:
        dtype: The number format of keys, values and weights that are not quantised: "bf16" or "fp32".
        weights: The format of the weights: "as-is", "int8" or "int4".
        kv: The format of keys and values: "as-is" or "int8".
        max_model_len: The most tokens of a prompt and its output together. By default, the model's own limit.
        shared_weights: A directory that only this user can use. Processes that load the same model with it share the
            memory of its weights: the first packs them into a file there, and the others map that file. Not for a
            tensor_parallel_size above 1, where each process has a share of its own.
        speculation: "auto" drafts with the draft model, or without one from the text itself, as long as that is
            faster. States of fixed size need memory for drafts; without a draft model, "auto" does not draft if there
            is too little. "ngram" drafts from the text, and "off" never drafts.
        num_draft_tokens: The most tokens that are drafted at a time, up to 64.
        max_num_seqs: The most sequences in a step.
        max_batch_tokens: The most tokens in a step.
        max_step_ms: The time in milliseconds that a step with a prompt in it may take while outputs wait for it.
        memory: The bytes for the state of the sequences. By default, a quarter of the free memory.
        prefix_caching: Keep computed prompts for other requests with the same beginning.
        max_waiting: How many requests beyond max_num_seqs may wait.
        tensor_parallel_size: How many processes of this machine compute the model together, each with a share of its
            weights, of its keys and values, and of the cores. For decoders of the Llama family in a directory.

    Raises:
        OptionError: A value is out of range.
    """

    speculation: SpeculationKind = "auto"
    num_draft_tokens: int = 4
    max_num_seqs: int = 64
    max_batch_tokens: int = 512
    max_step_ms: float = 100.0
    memory: int | None = None
    prefix_caching: bool = True
    max_waiting: int = 256
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise OptionError(f"{name}={value!r}: it is a whole number of at least {least}")
        if self.num_draft_tokens > MOST_DRAFTS:
            raise OptionError(f"num_draft_tokens={self.num_draft_tokens}: it is at most {MOST_DRAFTS}")
        if self.tensor_parallel_size > MOST_RANKS:
            raise OptionError(f"tensor_parallel_size={self.tensor_parallel_size}: it is at most {MOST_RANKS}")
        if self.shared_weights is not None and self.tensor_parallel_size > 1:
            raise OptionError(
                f"shared_weights={str(self.shared_weights)!r} with tensor_parallel_size={self.tensor_parallel_size}: "
                "each process has a share of the weights of its own, so leave shared_weights out"
            )
        if self.max_batch_tokens < self.max_num_seqs:
            raise OptionError(
                f"max_batch_tokens={self.max_batch_tokens} is below max_num_seqs={self.max_num_seqs}: "
                "each sequence needs at least one token of a step"
            )
        if not self.max_step_ms > 0:
            raise OptionError(f"max_step_ms={self.max_step_ms}: it is a number above 0")
        if self.memory is not None and self.memory <= 0:
            raise OptionError(f"memory={self.memory}: it is a number of bytes above 0")
        if self.speculation not in get_args(SpeculationKind):
            raise OptionError(f"speculation={self.speculation!r}: write {', '.join(get_args(SpeculationKind))}")
