"""Who guesses: what is found in the text itself, and what a smaller model keeps of a sequence."""

from collections.abc import Sequence

import pytest
from driving import Run, make_request, make_stepper
from hash_model import HashModel
from hypothesis import given
from hypothesis import strategies as st
from naive import naive_output

from whet.models.step import Allocation
from whet.server.drafters import ModelDrafter, NgramDrafter
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.speculation_controller import SpeculationController
from whet.server.speculative import Speculation

PARAMS = SamplingParams(temperature=0, max_tokens=30)


def looked_up(token_ids: list[int], count: int) -> list[int]:
    """The same by trying every place."""
    for length in (3, 2):
        pattern = token_ids[-length:]
        for place in range(len(token_ids) - 1, length - 1, -1):
            if len(pattern) == length and token_ids[place - length : place] == pattern:
                source = list(token_ids)
                for i in range(count):
                    source.append(source[place + i])
                return source[len(token_ids) :]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.lists(st.integers(250, 260), max_size=12))
def test_the_latest_place_where_the_last_tokens_stood(few: list[int], wide: list[int]) -> None:
    drafter = NgramDrafter()
    request = make_request([*few], PARAMS)
    for token_id in [None, *wide, *few]:
        if token_id is not None:
            request.token_ids.append(token_id)
        assert drafter.propose([request], [4])
        assert request.drafts == looked_up(request.token_ids, 4)


def test_tokens_whose_bytes_are_alike() -> None:
    request = make_request([0x010203, 0x01020301, 0x030102, 0x020301, 0x010203, 0x01020301], PARAMS)
    NgramDrafter().propose([request], [1])
    assert request.drafts == [0x030102]


def test_nothing_is_kept_of_those_that_are_gone() -> None:
    drafter = NgramDrafter()
    requests = [make_request([1, 2, 1, 2], PARAMS) for _ in range(3)]
    drafter.propose(requests, [2] * 3)
    drafter.propose(requests[1:2], [2])
    assert list(drafter._texts) == [requests[1].id]


def stepper_with_itself(num_draft_blocks: int, **options: int) -> tuple[Run, ModelDrafter]:
    """The drafting model is the model: every draft must be right, if its state is."""
    drafter = ModelDrafter(
        HashModel(block_size=8), Allocation(num_blocks=num_draft_blocks), num_rows=8, max_len=64, max_batch_tokens=16
    )
    return Run(make_stepper(HashModel(), speculation=Speculation(drafter, 4), **options)), drafter


@pytest.mark.parametrize("options", [{}, {"max_batch_tokens": 9}, {"num_blocks": 20}, {"max_batch_tokens": 11}])
def test_the_model_itself_is_always_right(options: dict[str, int]) -> None:
    """After full acceptance, part acceptance, preemption and chunks: one wrong entry in its cache, and it is not."""
    run, _ = stepper_with_itself(60, **options)
    run.add(*(make_request([i, 7, 3] * (2 * i + 1), PARAMS) for i in range(5)))
    run.until_done()
    speculation = run.stepper.speculation
    assert speculation is not None
    assert speculation.num_drafted == speculation.num_accepted > 50


class Watched(ModelDrafter):
    """Compares each draft with what its model says of the tokens alone."""

    def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
        is_steady = super().propose(requests, num_drafts)
        for request in requests:
            params = SamplingParams(temperature=0, max_tokens=len(request.drafts))
            model = HashModel(vocab_size=12, seed=2)
            assert request.drafts == naive_output(model.logits_after, request.token_ids, params)
        return is_steady


class NowAndThen(SpeculationController):
    """Drafts for two steps of five."""

    num_asked = 0

    def wants_drafts(self, num_seqs: int) -> bool:
        self.num_asked += 1
        return self.num_asked % 5 < 2


@pytest.mark.parametrize("controller", [None, NowAndThen()], ids=["always", "now and then"])
@pytest.mark.parametrize("num_blocks", [100, 16])
def test_refused_drafts_leave_nothing_behind(num_blocks: int, controller: SpeculationController | None) -> None:
    drafter = Watched(
        HashModel(vocab_size=12, seed=2), Allocation(num_blocks=100), num_rows=8, max_len=64, max_batch_tokens=64
    )
    speculation = Speculation(drafter, 3, controller)
    run = Run(make_stepper(HashModel(vocab_size=12), num_blocks=num_blocks, speculation=speculation))
    run.add(*(make_request([i, 7, 3], PARAMS) for i in range(5)))
    run.until_done()
    assert run.stepper.speculation is speculation  # no draft was found wrong
    assert 5 < speculation.num_accepted < speculation.num_drafted - 5


def test_with_too_few_blocks_it_drafts_for_some() -> None:
    run, _ = stepper_with_itself(5)
    run.add(*(make_request([i, 7, 3], PARAMS) for i in range(5)))
    run.until_done()
    speculation = run.stepper.speculation
    assert speculation is not None
    assert speculation.num_drafted == speculation.num_accepted > 10


def test_no_further_than_the_drafting_model_can_read() -> None:
    drafter = ModelDrafter(HashModel(), Allocation(num_blocks=60), num_rows=8, max_len=20, max_batch_tokens=64)
    speculation = Speculation(drafter, 4)
    run = Run(make_stepper(HashModel(), speculation=speculation))
    run.add(make_request([1, 7, 3], PARAMS), make_request([2] * 30, PARAMS))
    done = run.until_done()
    assert [len(one.token_ids) for one in done.values()] == [30, 30]
    assert run.stepper.speculation is speculation  # it did not fail
    assert 5 < speculation.num_accepted <= 17


def test_its_blocks_come_back() -> None:
    run, drafter = stepper_with_itself(60)
    first, second = make_request([1, 2], PARAMS), make_request([3, 4], PARAMS)
    run.add(first, second)
    for _ in range(3):
        run.step()
    assert drafter._blocks.num_free == 60 - 4
    run.take([run.stepper.abort(first)])
    run.step()
    assert drafter._blocks.num_free == 60 - 3
    assert set(drafter._mirrors) == {second.id}


def test_logits_that_are_no_numbers_give_no_drafts() -> None:
    for temperature in (0.0, 1.0):
        request: Request = make_request([1, 2], SamplingParams(temperature=temperature, seed=1, max_tokens=9))
        drafter = ModelDrafter(
            HashModel(nan_after=[2]), Allocation(num_blocks=8), num_rows=1, max_len=64, max_batch_tokens=16
        )
        drafter.propose([request], [3])
        assert request.drafts == []
