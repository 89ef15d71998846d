"""Define the tables of the configuration of `whet train` that are for fine-tuning: [distill] and [lora]."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from whet.trainer.section import Count, Rate, Section

Index = Annotated[int, Field(ge=0)]


class DistillSection(Section):
    """Say from which teacher the model learns, beside the data.

    Attributes:
        teacher: The Hugging Face directory of a causal language model with the same vocabulary.
        temperature: What both models' logits are divided by for the teacher's term.
        alpha: The weight of the teacher's term; the data has the rest.
        hidden_weight: The weight of the term that holds hidden states against the teacher's; 0 for none.
        layers: The teacher's layer for layers of the model, counted from 0; None spaces them evenly.
    """

    teacher: Path
    temperature: Rate = 2.0
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    hidden_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    layers: dict[Index, Index] | None = None

    @model_validator(mode="after")
    def _uses_layers(self) -> "DistillSection":
        if self.layers is not None and not (self.layers and self.hidden_weight):
            raise ValueError("layers names pairs of layers whose hidden states are compared; set hidden_weight too")
        return self


class LoraSection(Section):
    """Say that small matrices beside the model's own are trained in their place (LoRA).

    Attributes:
        r: The rank of the matrices.
        alpha: Their product is multiplied by alpha / r.
        dropout: The dropout before them.
        target_modules: The names of linear layers that get them; None for all linear layers of the blocks.
        merge: Whether the model that is written holds the sum. Otherwise an adapter is written, in peft's format.
    """

    r: Count = 8
    alpha: Rate = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: tuple[str, ...] | None = None
    merge: bool = True

    @model_validator(mode="before")
    @classmethod
    def _as_list(cls, data: Any) -> Any:
        """Take a single name for a list of one."""
        if isinstance(data, dict) and isinstance(data.get("target_modules"), str):
            return {**data, "target_modules": [data["target_modules"]]}
        return data

    @model_validator(mode="after")
    def _has_targets(self) -> "LoraSection":
        if self.target_modules is not None and not self.target_modules:
            raise ValueError("target_modules names no layer; leave it out for all linear layers of the blocks")
        return self
