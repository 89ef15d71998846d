"""Blocks: what is shared and with whom, what is reused first, and books that agree."""

import pytest
from driving import make_request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from whet.server.blocks import Blocks, block_hash, root_hash
from whet.server.request import Request, Status
from whet.server.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=50)


def make_blocks(num_blocks: int = 10, **options: object) -> Blocks:
    return Blocks(num_blocks, 4, 6, 100, **options)


def computed(blocks: Blocks, prompt: list[int], **options: object) -> Request:
    """A request all of whose tokens are computed and published."""
    request = make_request(prompt, PARAMS, **options)
    shared = blocks.match(request)
    assert blocks.can_seat(request, shared, 0)
    blocks.seat(request, shared)
    assert blocks.grow(request, len(prompt))
    request.num_computed = len(prompt)
    blocks.publish(request)
    return request


def test_an_equal_beginning_is_shared() -> None:
    blocks = make_blocks()
    first = computed(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = computed(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11])
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    third = computed(blocks, [1, 2, 3, 4, 9, 9, 9, 9, 9])
    assert third.blocks[0] == first.blocks[0]
    assert third.blocks[1] not in first.blocks
    blocks.check([first, second, third])
    assert blocks.num_free == 10 - 3 - 1 - 2


def test_the_last_token_is_computed_even_if_all_are_there() -> None:
    blocks = make_blocks()
    computed(blocks, [1, 2, 3, 4, 5, 6, 7, 8])
    assert len(blocks.match(make_request([1, 2, 3, 4, 5, 6, 7, 8], PARAMS))) == 1
    assert len(blocks.match(make_request([1, 2, 3, 4, 5, 6, 7, 8, 9], PARAMS))) == 2


def test_who_shares_with_whom() -> None:
    prompt = [1, 2, 3, 4, 5]
    blocks = make_blocks(identity="model bf16")
    computed(blocks, prompt, salt="alice")
    assert blocks.match(make_request(prompt, PARAMS, salt="alice"))
    assert not blocks.match(make_request(prompt, PARAMS, salt="bob"))
    assert not blocks.match(make_request(prompt, PARAMS))
    wants_all = make_request(prompt, SamplingParams(prompt_logprobs=1), salt="alice")
    assert not blocks.match(wants_all)
    off = make_blocks(prefix_caching=False)
    computed(off, prompt)
    assert not off.match(make_request(prompt, PARAMS))


def test_hashes_tell_fields_apart() -> None:
    roots = {root_hash(*fields) for fields in (("a", "b"), ("ab", ""), ("", "ab"), ("b", "a"), ("a", "b\ud800"))}
    assert len(roots) == 5
    root = root_hash("", "")
    assert block_hash(root, [1, 2]) != block_hash(root, [2, 1])
    assert block_hash(root, [258]) != block_hash(root, [2, 1])
    assert block_hash(block_hash(root, [1]), [2]) != block_hash(root, [2])


def test_only_what_is_computed_is_published() -> None:
    blocks = make_blocks()
    request = make_request(list(range(12)), PARAMS)
    blocks.seat(request, [])
    blocks.grow(request, 12)
    request.num_computed = 7
    request.drafts = [1, 2, 3]
    blocks.publish(request)
    assert len(blocks.match(make_request(list(range(12)), PARAMS))) == 1


def test_a_freed_block_is_found_until_it_is_reused_and_ends_go_first() -> None:
    blocks = make_blocks(num_blocks=4)
    first = computed(blocks, list(range(12)))
    own = list(first.blocks)
    blocks.release(first)
    blocks.check([])
    again = make_request(list(range(13)), PARAMS)
    assert blocks.match(again) == own
    other = computed(blocks, [50] * 8)  # takes the block never used, then the last of the three
    assert blocks.match(again) == own[:2]
    assert own[2] in other.blocks
    blocks.check([other])
    blocks.release(other)
    assert len(blocks.match(again)) == 2


def test_waking_a_free_block_takes_it_off_the_free_list() -> None:
    blocks = make_blocks(num_blocks=3)
    blocks.release(computed(blocks, list(range(8))))
    again = make_request(list(range(9)), PARAMS)
    shared = blocks.match(again)
    assert blocks.can_seat(again, shared, 0)
    assert not blocks.can_seat(again, shared, 1)
    blocks.seat(again, shared)
    assert blocks.num_free == 1
    assert again.num_computed == 8
    blocks.check([again])


def test_growing_is_all_or_nothing() -> None:
    blocks = make_blocks(num_blocks=3)
    request = make_request([1], PARAMS)
    blocks.seat(request, [])
    assert not blocks.grow(request, 13)
    assert (request.blocks, blocks.num_free) == ([], 3)
    assert blocks.grow(request, 12)
    assert request.capacity == 12
    assert blocks.usage == 1


def test_rows_without_blocks() -> None:
    blocks = Blocks(0, 0, 2, 100)
    requests = [make_request([1] * 50, PARAMS) for _ in range(3)]
    for request in requests[:2]:
        assert blocks.can_seat(request, [], 0)
        blocks.seat(request, [])
        assert blocks.grow(request, 99)
    assert not blocks.can_seat(requests[2], [], 0)
    assert blocks.usage == 1
    blocks.check(requests[:2])
    blocks.release(requests[0])
    assert blocks.can_seat(requests[2], [], 0)


def test_wrong_books_are_found() -> None:
    for spoil in ("references", "free", "table", "row", "computed"):
        blocks = make_blocks()
        request = computed(blocks, list(range(6)))
        blocks.check([request])
        if spoil == "references":
            blocks._references[request.blocks[0]] += 1
        elif spoil == "free":
            blocks._free[request.blocks[0]] = None
        elif spoil == "table":
            blocks.tables[request.row, 1] += 1
        elif spoil == "row":
            blocks._free_rows.append(request.row)
        else:
            request.num_computed = 9
        with pytest.raises(AssertionError):
            blocks.check([request])


class AnyOrder(RuleBasedStateMachine):
    """Requests of few different beginnings seat, grow, publish and go in any order; content is followed by a model."""

    @initialize(num_blocks=st.integers(3, 12))
    def start(self, num_blocks: int) -> None:
        self.blocks = make_blocks(num_blocks)
        self.seated: list[Request] = []
        self.content: dict[int, tuple[str, list[int]]] = {}  # of each block: salt, and all tokens up to its end

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=17), salt=st.sampled_from(["", "x"]))
    def seat(self, prompt: list[int], salt: str) -> None:
        request = make_request(prompt, PARAMS, salt=salt)
        shared = self.blocks.match(request)
        for i, block in enumerate(shared):
            assert self.content[block] == (salt, prompt[: 4 * i + 4])
        if self.blocks.can_seat(request, shared, 0):
            self.blocks.seat(request, shared)
            request.status = Status.RUNNING
            self.seated.append(request)

    @rule(data=st.data(), count=st.integers(1, 6))
    def compute(self, data: st.DataObject, count: int) -> None:
        if not self.seated:
            return
        request = data.draw(st.sampled_from(self.seated))
        end = min(request.num_computed + count, len(request.token_ids))
        if not self.blocks.grow(request, end):
            return
        for position in range(request.num_computed, end):
            self.content[request.blocks[position // 4]] = (request.cache_salt, request.token_ids[: position + 1])
        request.num_computed = end
        self.blocks.publish(request)
        if end == len(request.token_ids):
            request.token_ids.append(data.draw(st.integers(0, 1)))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.seated:
            request = data.draw(st.sampled_from(self.seated))
            self.seated.remove(request)
            self.blocks.release(request)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "blocks"):
            self.blocks.check(self.seated)

    @invariant()
    def state_is_a_requests_own(self) -> None:
        for request in getattr(self, "seated", []):
            for i, block in enumerate(request.blocks[: request.num_computed // 4]):
                assert self.content[block] == (request.cache_salt, request.token_ids[: 4 * i + 4])


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=40)
