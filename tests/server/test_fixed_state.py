"""An engine with a model whose state has a fixed size: its figures, its memory, and what is refused."""

import random

import pytest
from hash_model import HashModel
from naive import naive_output
from recurrent_model import BankCell, GatedCell, RecurrentModel, WithBlocks

from whet.errors import OptionError
from whet.models.step import Allocation
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams
from whet.server.sizing import sizes

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12)


class Forward(RecurrentModel):
    """Cannot go back."""

    can_rewind = False


def prompts() -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(40) for _ in range(length)] for length in (10, 13, 18, 26, 11)]


def test_an_engine_with_one() -> None:
    model = RecurrentModel(BankCell, max_model_len=120)
    shared = [7] * 70
    with Engine(model, EngineOptions(max_num_seqs=3)) as engine:
        for some in ([*prompts(), shared], [shared]):
            done = engine.generate(some, PARAMS)
            assert [one.token_ids for one in done] == [naive_output(model.logits_after, p, PARAMS) for p in some]
        stats = engine.stats()
    assert done[0].num_cached_tokens == stats.prefix_cache_hits == 69
    assert stats.prefix_cache_queries == sum(map(len, prompts())) + 140
    assert stats.speculation != "off"
    assert stats.kv_cache_usage == 0


@pytest.mark.parametrize("options", [{"prefix_caching": False, "speculation": "off"}, {"memory": 3 * 32}])
def test_without_snapshots_and_drafts(options: dict[str, object]) -> None:
    """They are not wanted, or the memory holds the states of running sequences and no more."""
    model = RecurrentModel(GatedCell)
    with Engine(model, EngineOptions(max_num_seqs=3, **options)) as engine:
        done = engine.generate([*prompts(), *prompts()], PARAMS)
        stats = engine.stats()
    assert [one.token_ids for one in done[:5]] == [naive_output(model.logits_after, p, PARAMS) for p in prompts()]
    assert (stats.speculation, stats.prefix_cache_queries) == ("off", 0)
    assert model.rows.num_rows == 3


def test_what_such_a_state_cannot_do_is_refused() -> None:
    with pytest.raises(OptionError, match="cannot go back over refused drafts"):
        Engine(Forward(GatedCell), EngineOptions(speculation="ngram"))
    for model, draft in ((RecurrentModel(GatedCell), Forward(GatedCell)), (Forward(GatedCell), HashModel())):
        with pytest.raises(OptionError, match="cannot go back over refused drafts"):
            Engine(model, draft=draft)
    with pytest.raises(OptionError, match="a vocabulary of 40 tokens, the model one of 41: they must share one"):
        Engine(RecurrentModel(GatedCell, vocab_size=41), draft=HashModel())
    with pytest.raises(OptionError, match=r"the states of 64 sequences take 6.14 kB and .* 1.00 kB"):
        Engine(RecurrentModel(BankCell), EngineOptions(memory=1000))
    with pytest.raises(OptionError, match=r"the states of 64 sequences take 18.4 kB and .* 7.00 kB"):
        Engine(RecurrentModel(BankCell), EngineOptions(memory=7000, speculation="ngram", num_draft_tokens=2))


def test_drafts_that_nobody_asked_for_take_no_room_from_the_first_sequence() -> None:
    """Two states and a text of 64 tokens fill the memory."""
    given = {"memory": 32 * (2 + 16), "max_num_seqs": 2, "max_model_len": 64}
    with Engine(WithBlocks(), EngineOptions(**given)) as engine:
        assert engine.stats().speculation == "off"
    with pytest.raises(OptionError, match="one sequence of 64 tokens takes"):
        Engine(WithBlocks(), EngineOptions(**given, speculation="ngram"))


def test_how_the_memory_is_divided() -> None:
    """A state has 32 bytes, and so has what a draft adds to it; so has a block of 4 tokens, of which a text has 16."""
    states, both, blocks = RecurrentModel(GatedCell), WithBlocks(), HashModel()
    common = {"max_num_seqs": 2, "max_model_len": 64}
    made = sizes(states, None, memory=32 * 7, **common)
    assert made.model == Allocation(num_states=2, num_snapshots=5)
    assert sizes(states, None, memory=32 * 99, **common).model.num_snapshots == 8
    assert sizes(states, None, memory=32 * 99, prefix_caching=False, **common).model == Allocation(num_states=2)
    made = sizes(states, None, memory=32 * 9, num_drafts=3, **common)
    assert made.model == Allocation(num_states=2, num_snapshots=1, num_drafts=3)
    made = sizes(both, None, memory=32 * (2 + 16 + 8), **common)  # 8 are left, a quarter of them for snapshots
    assert made.model == Allocation(num_blocks=16 + 6, num_states=2, num_snapshots=2)
    assert sizes(both, None, memory=32 * 999, **common).model == Allocation(
        num_blocks=32, num_states=2, num_snapshots=8
    )
    made = sizes(states, blocks, memory=32 * (2 + 16), **common)
    assert (made.model, made.draft) == (Allocation(num_states=2), Allocation(num_blocks=16))
    made = sizes(blocks, states, memory=32 * (2 + 16), **common)
    assert (made.model, made.draft) == (Allocation(num_blocks=16), Allocation(num_states=2))
    with pytest.raises(OptionError, match="one sequence of 64 tokens takes 576 B"):
        sizes(states, blocks, memory=32 * 17, **common)
