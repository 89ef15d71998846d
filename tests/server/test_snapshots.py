"""Where snapshots are taken, which of them stay, and for whom."""

import pytest
from driving import make_request

from whet.server.prefixes import PrefixHashes
from whet.server.request import UNLIMITED, Request
from whet.server.sampling_params import SamplingParams
from whet.server.snapshots import Snapshots

PARAMS = SamplingParams(temperature=0, max_tokens=500)


class Rows:
    """What each row holds: the tokens that its state has read."""

    def __init__(self, num_snapshots: int, **places: int) -> None:
        self.held: dict[int, list[int]] = {}
        rows = range(2, 2 + num_snapshots)
        self.snapshots = Snapshots(rows, PrefixHashes("model", 4), self.copy, **{"least": 8, **places})

    def copy(self, source: int, target: int) -> None:
        self.held[target] = list(self.held[source])

    def read(self, prompt: list[int], num_output: int = 0, row: int = 0, **options: str) -> tuple[Request, list[int]]:
        """A request that is computed to its end, and the positions at which snapshots were due in its prompt."""
        request = make_request(prompt, PARAMS, **options)
        found = self.snapshots.find(request, len(prompt))
        request.row = row
        self.snapshots.begin(request, found)
        assert found == request.num_computed
        assert found == 0 or self.held[row] == prompt[:found]
        places = []
        while request.num_computed < len(prompt):
            place = self.snapshots.next_place(request)
            places.append(place)
            self.settle(request, min(place, len(prompt)))
        for i in range(num_output):
            request.token_ids.append(i)
            self.settle(request, len(request.token_ids))
        return request, [place for place in places if place != UNLIMITED]

    def settle(self, request: Request, position: int) -> None:
        request.num_computed = position
        self.held[request.row] = request.token_ids[:position]
        self.snapshots.take(request, position)
        self.snapshots.check()

    def found(self, prompt: list[int], **options: str) -> int:
        return self.snapshots.find(make_request(prompt, PARAMS, **options), len(prompt))


def test_the_end_of_a_prompt_and_where_prompts_part() -> None:
    rows, common = Rows(8), list(range(30))
    assert rows.read([*common, 1, 2, 3])[1] == [32]
    assert rows.found([*common, 1, 2, 3]) == 32
    assert rows.found([*common, 1, 2]) == 0  # the last token is left to compute
    assert rows.read([*common, 5, 6, 7])[1] == [28, 32]
    assert rows.read([*common, 8, 8, 8])[1] == [32]  # from 28 on
    assert rows.found([*common, 9]) == 28
    assert rows.found([*common, 9], salt="another") == 0
    assert rows.read(list(range(7)))[1] == []  # too few tokens
    assert rows.read([*range(8), 9])[1] == [8]


def test_long_prompts_have_more_of_them_but_a_quarter_of_the_rows_at_most() -> None:
    rows = Rows(8, interval=16)
    assert rows.read(list(range(31)))[1] == [16, 28]
    assert rows.read(list(range(100, 201)))[1] == [52, 100]
    assert rows.found([*range(16), 99]) == 16


def test_an_output_has_one_that_moves_on() -> None:
    rows = Rows(8, rolling=8)
    request, places = rows.read(list(range(21)), num_output=20)
    assert places == [20]
    text = request.token_ids
    assert len(text) == 41
    assert [rows.found([*text[:count], 99]) for count in (20, 24, 32, 40)] == [20, 20, 20, 40]
    rows.read([*text, 98], row=1)
    rows.settle(request, 41)
    request.token_ids += list(range(7))
    rows.settle(request, 48)
    assert rows.found([*text[:40], 99]) == 40  # somebody has used it
    assert rows.found([*request.token_ids[:48], 99]) == 48


@pytest.mark.parametrize("num_drafts", [1, 3, 7, 30])
def test_drafts_jump_over_no_place(num_drafts: int) -> None:
    rows = Rows(4, rolling=8)
    request = make_request(list(range(5)), PARAMS)
    known = set()
    while len(request.token_ids) < 60:
        known.add(len(request.token_ids))
        room = rows.snapshots.draft_room(request)
        request.token_ids += [1] * min(1 + num_drafts, room)
    assert known >= set(range(8, 60, 8))


def test_the_one_goes_that_was_not_used_for_longest() -> None:
    rows = Rows(2)
    first, second, third = ([i] * 10 for i in range(3))
    rows.read(first)
    rows.read(second)
    rows.read(first)
    rows.read(third)
    assert [rows.found(prompt) for prompt in (first, second, third)] == [8, 0, 8]


def test_log_probabilities_of_a_prompt_are_computed() -> None:
    rows = Rows(2)
    rows.read([1] * 10)
    request = make_request([1] * 10, SamplingParams(max_tokens=1, prompt_logprobs=1))
    assert rows.snapshots.find(request, 10) == 0


def test_a_damaged_record_is_noticed() -> None:
    rows = Rows(3)
    rows.read([1] * 10)
    rows.snapshots._free.pop()
    with pytest.raises(AssertionError, match="rows of snapshots"):
        rows.snapshots.check()
    rows.snapshots.reset()
    rows.snapshots.check()
    assert rows.found([1] * 10) == 0
