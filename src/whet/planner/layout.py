"""Say how a training is laid out on a cluster: degrees, what is divided, what is computed again, number formats."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Recompute = Literal["none", "selective", "operators", "full"]
Software = Literal["torch-2024", "torch-2023", "megatron-2024", "megatron-2022", "megatron-2021", "megatron-deepspeed"]
Precision = Literal["float32", "bfloat16", "fp8"]
OptimizerName = Literal["adamw", "adamw_8bit", "sgd", "lion", "adafactor", "muon"]


class Work(BaseModel):
    """Say what a step trains on.

    Attributes:
        global_batch_size: The rows of a step, over all chips.
        sequence_length: The tokens of a row.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    global_batch_size: int = Field(ge=1)
    sequence_length: int = Field(ge=1)

    @property
    def tokens(self) -> int:
        """Return the tokens of a step."""
        return self.global_batch_size * self.sequence_length


class Bytes(BaseModel):
    """Hold the bytes that a trained parameter takes by what they are for.

    The defaults are those of mixed precision with Adam: bfloat16 weights, float32 gradients, and float32 master weights
    with two moments (Rajbhandari et al., 2020, arXiv:1910.02054).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameter: float = 2
    gradient: float = 4
    state: float = 12


class Layout(BaseModel):
    """Hold the degrees of a plan and what decides its memory and time. The product of the degrees is the chips.

    Attributes:
        replicate: Copies of the model, or of its groups of shards.
        shard: Chips that share one copy's state, by zero_stage.
        tensor: Chips that share each matrix.
        pipeline: Chips that share the layers.
        context: Chips that share each row of tokens.
        expert: Of the data-parallel chips, those that share the experts of a layer.
        zero_stage: 0 nothing is divided, 1 the optimiser's state, 2 gradients too, 3 parameters too.
        virtual_stages: The stages of a chip in an interleaved pipeline.
        micro_batch_size: The rows that a chip computes at a time.
        recompute: What backward computes again: "selective" is attention's inner part (Korthikanti et al., 2022),
            "operators" is all but attention and every second matrix product (torchtitan).
        precision: The numbers that are multiplied.
        sequence_parallel: Whether tensor-parallel chips share the tokens between matrices.
        fused_attention: Whether attention keeps no matrix of scores.
        compiled: Whether elementwise operators are fused.
        fused_loss: Whether the loss keeps no float32 logits.
        offload: Whether the optimiser's state lies in the host's memory.
        overlaps_tensor: Whether tensor-parallel messages travel while parts of a matrix product are computed.
        overlaps_data: Whether gradients travel during backward.
        copies_tokens: Whether a token is sent once for each of its experts, and not once to each node with one of them.
        overlaps_expert: Whether tokens travel to experts while another micro-batch is computed (DualPipe).
        software: The family of programs whose published speeds are taken: PyTorch's FSDP, Megatron, or Megatron's
            layers in DeepSpeed's pipelines, by year.
        optimizer: What updates the parameters.
        bytes: The bytes of a trained parameter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicate: int = Field(default=1, ge=1)
    shard: int = Field(default=1, ge=1)
    tensor: int = Field(default=1, ge=1)
    pipeline: int = Field(default=1, ge=1)
    context: int = Field(default=1, ge=1)
    expert: int = Field(default=1, ge=1)
    zero_stage: Literal[0, 1, 2, 3] = 0
    virtual_stages: int = Field(default=1, ge=1)
    micro_batch_size: int = Field(default=1, ge=1)
    recompute: Recompute = "none"
    precision: Precision = "bfloat16"
    sequence_parallel: bool = True
    fused_attention: bool = True
    compiled: bool = False
    fused_loss: bool = False
    offload: bool = False
    overlaps_tensor: bool = False
    overlaps_data: bool = True
    copies_tokens: bool = False
    overlaps_expert: bool = False
    software: Software = "torch-2024"
    optimizer: OptimizerName = "adamw"
    bytes: Bytes = Bytes()

    @property
    def data(self) -> int:
        """Return how many chips see other rows."""
        return self.replicate * self.shard

    @property
    def chips(self) -> int:
        """Return how many chips the layout takes."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def number_bytes(self) -> int:
        """Return the bytes of a number that is computed with and sent, outside of fp8 matrices."""
        return 4 if self.precision == "float32" else 2

    def num_micro_batches(self, work: Work) -> int:
        """Return the micro-batches of each chip in a step."""
        return work.global_batch_size // (self.data * self.micro_batch_size)

    def micro_batch_tokens(self, work: Work) -> float:
        """Return the tokens of a micro-batch that a chip computes, of which context-parallel chips have equal parts."""
        return self.micro_batch_size * work.sequence_length / self.context
