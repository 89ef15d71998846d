"""Assemble the parts of an engine for a model and options: blocks, scheduler, speculation and stepper."""

from functools import partial

from whet.errors import OptionError
from whet.models.step import Allocation, ServedModel
from whet.server.blocks import Blocks
from whet.server.drafters import ModelDrafter, NgramDrafter
from whet.server.options import EngineOptions
from whet.server.prefixes import PrefixHashes
from whet.server.scheduler import Scheduler
from whet.server.sizing import default_memory, sizes
from whet.server.snapshots import Snapshots
from whet.server.speculation_controller import SpeculationController
from whet.server.speculative import Speculation
from whet.server.stepper import Stepper


def assemble(
    model: ServedModel,
    options: EngineOptions,
    max_model_len: int,
    *,
    draft: ServedModel | None = None,
    identity: str = "",
) -> Stepper:
    """Return a stepper that is ready to run. `identity` differs for any two models whose cached states differ.

    Raises:
        OptionError: The options do not fit the models.
    """
    _check_speculation(model, draft, options)
    memory = default_memory() if options.memory is None else options.memory
    num_drafts = 0 if options.speculation == "off" or not model.can_rewind else options.num_draft_tokens
    room_for = partial(
        sizes,
        model,
        draft,
        memory=memory,
        max_num_seqs=options.max_num_seqs,
        max_model_len=max_model_len,
        prefix_caching=options.prefix_caching,
    )
    try:
        room = room_for(num_drafts=num_drafts)
    except OptionError:
        if draft is not None or options.speculation != "auto":
            raise
        room, num_drafts = room_for(num_drafts=0), 0  # nobody asked for drafts
    num_snapshots = room.model.num_snapshots
    blocks = Blocks(
        room.model.num_blocks,
        model.block_size if model.bytes_per_block else 0,
        options.max_num_seqs,
        max_model_len,
        identity=identity,
        # Cached blocks alone lack the state of fixed size.
        prefix_caching=options.prefix_caching and (num_snapshots > 0 or not model.bytes_per_state),
    )
    scheduler = Scheduler(
        blocks,
        max_num_seqs=options.max_num_seqs,
        max_batch_tokens=options.max_batch_tokens,
        max_step_ms=options.max_step_ms,
        snapshots=snapshots_of(model, room.model, identity) if num_snapshots else None,
    )
    model.allocate(room.model)
    speculation = None
    if num_drafts:
        drafter = NgramDrafter() if draft is None else _model_drafter(draft, room.draft, options, max_model_len)
        speculation = Speculation(drafter, options.num_draft_tokens, SpeculationController())
    return Stepper(model, scheduler, speculation)


def snapshots_of(model: ServedModel, room: Allocation, identity: str, **places: int) -> Snapshots:
    """Return a model's snapshots, in its rows. `places` are the arguments of Snapshots on where to take them."""
    rows = range(room.num_states, room.num_states + room.num_snapshots)
    return Snapshots(rows, PrefixHashes(identity, model.block_size), model.copy_state, **places)


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


def _model_drafter(draft: ServedModel, room: Allocation, options: EngineOptions, max_model_len: int) -> ModelDrafter:
    return ModelDrafter(
        draft,
        room,
        num_rows=options.max_num_seqs,
        max_len=min(max_model_len, draft.max_model_len),
        max_batch_tokens=options.max_batch_tokens,
    )
