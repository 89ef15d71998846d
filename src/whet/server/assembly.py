"""Assemble the parts of an engine for a model and options: blocks, scheduler, speculation and stepper."""

from typing import NamedTuple

from whet.errors import OptionError
from whet.models.step import Allocation, ServedModel
from whet.server.blocks import Blocks
from whet.server.drafters import Drafter, ModelDrafter, NgramDrafter
from whet.server.options import EngineOptions
from whet.server.scheduler import Scheduler
from whet.server.sizing import Sizes, sizes
from whet.server.speculation_controller import SpeculationController
from whet.server.speculative import Speculation
from whet.server.stepper import Stepper


class Models(NamedTuple):
    """Hold the models of an engine.

    Attributes:
        model: The model to serve.
        draft: The model that proposes tokens, or None.
        identity: A text that differs for any two models whose cached state differs.
    """

    model: ServedModel
    draft: ServedModel | None = None
    identity: str = ""


def assemble(models: Models, options: EngineOptions, max_model_len: int) -> Stepper:
    """Return a stepper that is ready to run. The memory of the models has been allocated.

    Raises:
        OptionError: The options do not fit the models.
    """
    model, draft = models.model, models.draft
    _check_speculation(model, draft, options)
    is_drafting = draft is not None and options.speculation == "auto"
    room = sizes(
        model,
        draft if is_drafting else None,
        memory=options.memory,
        max_num_seqs=options.max_num_seqs,
        max_model_len=max_model_len,
    )
    blocks = Blocks(
        room.num_blocks,
        model.block_size if model.bytes_per_block else 0,
        options.max_num_seqs,
        max_model_len,
        identity=models.identity,
        prefix_caching=options.prefix_caching and not model.bytes_per_state,  # cached blocks lack state of fixed size
    )
    scheduler = Scheduler(
        blocks,
        max_num_seqs=options.max_num_seqs,
        max_batch_tokens=options.max_batch_tokens,
        max_step_ms=options.max_step_ms,
    )
    model.allocate(Allocation(num_blocks=room.num_blocks, num_states=room.num_states))
    drafter = _drafter(model, draft if is_drafting else None, room, options, max_model_len)
    speculation = (
        Speculation(drafter, options.num_draft_tokens, SpeculationController()) if drafter is not None else None
    )
    return Stepper(model, scheduler, speculation)


def _check_speculation(model: ServedModel, draft: ServedModel | None, options: EngineOptions) -> None:
    if draft is None:
        if options.speculation == "ngram" and not model.can_rewind:
            raise OptionError('this model\'s state cannot go back over refused drafts: use speculation "off" or "auto"')
        return
    if options.speculation != "auto":
        raise OptionError(f'a draft model with speculation={options.speculation!r}: use "auto", or give no draft model')
    if not (model.can_rewind and draft.can_rewind):
        raise OptionError("the state of one of the models cannot go back over refused drafts: give no draft model")
    if draft.vocab_size != model.vocab_size:
        raise OptionError(
            f"the draft model has a vocabulary of {draft.vocab_size} tokens, the model one of {model.vocab_size}: "
            "they must share one"
        )


def _drafter(
    model: ServedModel, draft: ServedModel | None, room: Sizes, options: EngineOptions, max_model_len: int
) -> Drafter | None:
    if draft is not None:
        return ModelDrafter(
            draft,
            room.num_draft_blocks,
            num_rows=options.max_num_seqs,
            max_len=min(max_model_len, draft.max_model_len),
            max_batch_tokens=options.max_batch_tokens,
        )
    return NgramDrafter() if options.speculation != "off" and model.can_rewind else None
