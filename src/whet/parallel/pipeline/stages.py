"""Cut a decoder into stages: layers that a process holds, under the names that they have in the whole model."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whet.errors import OptionError
from whet.models.decoder.reference import Decoder
from whet.parallel.division import Division
from whet.parallel.stream import Stream


class Elsewhere(nn.Module):
    """Stand for a part of a model that another process holds. It has no parameters and cannot be called."""


class DecoderStage(nn.Module):
    """Apply some layers of a decoder, with the embedding before the first one, and the head behind the last one.

    It takes token ids [B, T] in the first stage, and the stream [B, T, D] in others. It returns logits [B, T, V] in the
    last stage, and the stream in others. Positions and mask are those of Decoder.forward. Of a stream whose tokens
    several processes share, it takes and returns those of this process.

    Attributes:
        number: Which stage it is, counted from 0.
        places: Which of the decoder's layers it applies.
    """

    def __init__(
        self,
        decoder: Decoder,
        number: int,
        num_stages: int,
        places: range,
        *,
        stream: Stream,
        checkpoints_blocks: bool,
    ) -> None:
        super().__init__()
        self.number, self.num_stages, self.places = number, num_stages, places
        self.layers = nn.ModuleList(decoder.layers[place] for place in places)
        tied = decoder.config.tie_word_embeddings
        # A tied weight belongs to both ends as both modules, so that it has the names of the whole model on each.
        self.embed_tokens = decoder.embed_tokens if self.is_first or (tied and self.is_last) else None
        self.lm_head = decoder.lm_head if self.is_last or (tied and self.is_first) else None
        self.norm = decoder.norm if self.is_last else None
        self._through, self._stream = decoder.through, stream
        self._checkpoints_blocks = checkpoints_blocks

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.number == self.num_stages - 1

    def forward(
        self, given: Tensor, positions_BT: Tensor | None = None, mask_B1TT: Tensor | None = None, *, length: int
    ) -> Tensor:
        """Compute the stage of rows of so many tokens, of which `given` may hold some."""
        if self.is_first and self.embed_tokens is not None:
            x_BTD: Tensor = self.embed_tokens(given)
        else:
            x_BTD = self._stream.entering(given, length)
        # Without gradients, checkpoint calls a layer as it is.
        options: dict[str, Any] = {"call": partial(checkpoint, use_reentrant=False)} if self._checkpoints_blocks else {}
        x_BTD = self._through(self.places, x_BTD, positions_BT, mask_B1TT, **options)
        if self.norm is None or self.lm_head is None:
            return self._stream.leaving(x_BTD)
        logits_BTV: Tensor = self.lm_head(self.norm(x_BTD))
        return logits_BTV


def places_of(number: int, num_stages: int, num_layers: int) -> range:
    """Return the layers of a stage: nearly equally many in each, and rather fewer in the last one, which has the head.

    Raises:
        OptionError: There are fewer layers than stages.
    """
    if num_layers < num_stages:
        raise OptionError(
            f"the plan has {num_stages} stages, more than the model has layers ({num_layers}); set "
            "parallel.pipeline_parallel_degree or parallel.stages_per_rank lower, whose product is the stages"
        )
    begin, end = (-(-one * num_layers // num_stages) for one in (number, number + 1))
    return range(begin, end)


def stages_of(model: nn.Module, division: Division) -> list[DecoderStage]:
    """Return the stages of this process, and leave nothing but their parts in the model.

    With several stages a process, it holds every so many-th one: of 2 processes with 4 stages, the first one has the
    stages 0 and 2.

    Raises:
        OptionError: The model is no decoder of models/, or has fewer layers than stages.
    """
    if type(model) is not Decoder:
        raise OptionError(
            f"parallel.pipeline_parallel_degree cuts the decoders of the Llama family, and the model is "
            f"{type(model).__name__}; set it to 1, and use data_parallel_shard_degree"
        )
    processes = division.degrees.pipeline
    num_stages = processes * division.plan.num_stages_per_rank
    found = [
        DecoderStage(
            model,
            number,
            num_stages,
            places_of(number, num_stages, len(model.layers)),
            stream=division.stream,
            checkpoints_blocks=division.plan.checkpointing == "blocks",
        )
        for number in range(division.stage_rank, num_stages, processes)
    ]
    held = {id(module) for stage in found for module in stage.modules()}
    for place, layer in enumerate(model.layers):
        if id(layer) not in held:
            model.layers[place] = Elsewhere()
    for name in ("embed_tokens", "norm", "lm_head"):
        if id(getattr(model, name)) not in held:
            setattr(model, name, Elsewhere())
    return found


def later_copies(model: nn.Module, division: Division) -> dict[str, nn.Parameter]:
    """Return the parameters of which the first stage's process holds the copy that counts, by all their names.

    They are an embedding that is the head too, in the process of the last stage.
    """
    if division.degrees.pipeline == 1 or division.stage_rank == 0 or not isinstance(model, Decoder):
        return {}
    tied = getattr(model.embed_tokens, "weight", None)
    return {name: p for name, p in model.named_parameters(remove_duplicate=False) if p is tied}
