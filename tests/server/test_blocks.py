"""Blocks: what is shared and with whom, what is reused first, and books that agree."""

import hashlib

import pytest
from driving import make_request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from whet.server.blocks import Blocks
from whet.server.prefixes import block_hash, root_hash
from whet.server.request import NO_ROW, Request, Status
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


@pytest.mark.parametrize(
    "spoil",
    ["references", "free", "lost", "table", "row", "computed", "capacity", "hash", "published", "twice"],
)
def test_wrong_books_are_found(spoil: str) -> None:
    blocks = make_blocks()
    request = computed(blocks, list(range(6)))
    blocks.check([request])
    first = request.blocks[0]
    if spoil == "references":
        blocks._references[first] += 1
    elif spoil == "free":
        blocks._free[first] = None
    elif spoil == "lost":
        blocks._free.popitem()
    elif spoil == "table":
        blocks.tables[request.row, 1] += 1
    elif spoil == "row":
        blocks._free_rows.append(request.row)
    elif spoil == "computed":
        request.num_computed = 9
    elif spoil == "capacity":
        request.capacity += 1
    elif spoil == "hash":
        blocks._hash_of[first] = b"another"
    elif spoil == "published":
        blocks._hash_of[request.blocks[1]] = b"of no published block"
    else:  # one block at two places of its table, and the other one given back
        blocks._free[request.blocks[1]] = None
        blocks._references[request.blocks[1]] = 0
        blocks._references[first] = 2
        request.blocks[1] = blocks.tables[request.row, 1] = first
    with pytest.raises(AssertionError):
        blocks.check([request])


def test_who_gives_back_holds_nothing() -> None:
    blocks = make_blocks()
    request = computed(blocks, list(range(6)))
    assert blocks.num_free == 8
    blocks.release(request)
    assert (request.blocks, request.row, request.capacity) == ([], NO_ROW, 0)
    assert (request.num_computed, request.num_published) == (0, 0)
    assert blocks.num_free == 10
    blocks.release(request)  # which changes nothing more
    blocks.check([])


def test_a_block_that_two_hold_is_free_once_both_have_given_it_back() -> None:
    blocks = make_blocks()
    first, second = (computed(blocks, [1, 2, 3, 4, last]) for last in (5, 6))
    assert first.blocks[0] == second.blocks[0]
    assert blocks.num_free == 10 - 3
    blocks.release(first)
    blocks.check([second])
    assert blocks.num_free == 10 - 2
    blocks.release(second)
    blocks.check([])
    assert blocks.num_free == 10


def test_the_share_in_use() -> None:
    blocks = make_blocks()
    assert blocks.usage == 0
    computed(blocks, list(range(9)))
    assert blocks.usage == pytest.approx(0.3)
    rows = Blocks(0, 0, 4, 100)
    assert rows.usage == 0
    rows.seat(make_request([1], PARAMS), [])
    assert rows.usage == 0.25


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_are_begun_for_single_tokens(num_tokens: int, num_blocks: int) -> None:
    assert make_blocks().blocks_for(num_tokens) == num_blocks
    assert Blocks(0, 0, 2, 100).blocks_for(num_tokens) == 0


def test_a_request_is_seated_where_all_its_tokens_and_the_reserve_have_room() -> None:
    blocks = make_blocks(num_blocks=5)
    request = make_request([1] * 12, PARAMS)
    assert blocks.can_seat(request, [], 2)
    assert not blocks.can_seat(request, [], 3)
    assert not blocks.can_seat(make_request([1] * 21, PARAMS), [], 0)
    holder = computed(blocks, [2] * 5)
    follower = make_request([2] * 13, PARAMS)
    shared = blocks.match(follower)
    assert shared == holder.blocks[:1]
    assert blocks.can_seat(follower, shared, 0)  # three blocks more, and three are free
    assert not blocks.can_seat(follower, shared, 1)


def test_the_lowest_row_and_block_that_were_never_used_come_first() -> None:
    blocks = make_blocks()
    requests = [computed(blocks, [token] * 5) for token in range(3)]
    assert [request.row for request in requests] == [0, 1, 2]
    assert [request.blocks for request in requests] == [[0, 1], [2, 3], [4, 5]]
    assert blocks.tables[1, :2].tolist() == [2, 3]
    blocks.release(requests[1])
    assert computed(blocks, [7]).row == 1


def test_a_reused_block_is_no_longer_found() -> None:
    blocks = make_blocks(num_blocks=2)
    blocks.release(computed(blocks, [1, 2, 3, 4, 5]))
    again = make_request([1, 2, 3, 4, 5], PARAMS)
    assert len(blocks.match(again)) == 1
    other = computed(blocks, [9] * 8)
    assert blocks.match(again) == []
    blocks.check([other])


def test_who_computes_the_same_at_the_same_time_keeps_a_block_of_its_own() -> None:
    blocks = make_blocks()
    requests = [make_request([1, 2, 3, 4, 5], PARAMS) for _ in range(2)]
    for request in requests:
        blocks.seat(request, [])
        assert blocks.grow(request, 5)
    for request in requests:
        request.num_computed = 5
        blocks.publish(request)
        assert request.num_published == 1
    blocks.check(requests)
    assert blocks.match(make_request([1, 2, 3, 4, 5], PARAMS)) == requests[0].blocks[:1]


def test_blocks_are_published_as_they_become_full() -> None:
    blocks = make_blocks()
    request = make_request(list(range(12)), PARAMS)
    blocks.seat(request, [])
    blocks.grow(request, 12)
    for num_computed, num_published in ((3, 0), (4, 1), (7, 1), (12, 3)):
        request.num_computed = num_computed
        blocks.publish(request)
        assert request.num_published == num_published
        assert len(blocks.match(make_request(list(range(13)), PARAMS))) == num_published


def test_state_beyond_the_verified_tokens_is_not_published() -> None:
    """Seven tokens are verified; the state of a guess lies behind them."""
    blocks = make_blocks()
    request = make_request(list(range(7)), PARAMS)
    blocks.seat(request, [])
    blocks.grow(request, 8)
    request.num_computed = 8
    blocks.publish(request)
    assert request.num_published == 1
    blocks.check([request])


def test_starting_afresh_forgets_everything() -> None:
    blocks = make_blocks()
    computed(blocks, [1, 2, 3, 4, 5])
    blocks.reset()
    assert blocks.match(make_request([1, 2, 3, 4, 5], PARAMS)) == []
    assert blocks.num_free == 10
    assert blocks.usage == 0
    blocks.check([])
    requests = [computed(blocks, [token]) for token in range(6)]
    assert [request.row for request in requests] == list(range(6))


def test_the_hashes_are_sha_256_of_named_fields() -> None:
    tokens = (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    assert root_hash("bf16", "é") == hashlib.sha256(b"identity:4:bf16salt:2:\xc3\xa9").digest()
    assert block_hash(b"p" * 32, [1, 2]) == hashlib.sha256(b"parent:32:" + b"p" * 32 + b"tokens:16:" + tokens).digest()


class AnyOrder(RuleBasedStateMachine):
    """Requests of few different beginnings seat, grow, publish and go in any order; content is followed by a model."""

    @initialize(num_blocks=st.integers(3, 12))
    def start(self, num_blocks: int) -> None:
        self.blocks = make_blocks(num_blocks)
        self.seated: list[Request] = []
        self.content: dict[int, tuple[str, list[int]]] = {}  # of each block: salt, and all tokens up to its end

    @rule(
        num_equal=st.integers(0, 12),
        rest=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        salt=st.sampled_from(["", "x"]),
    )
    def seat(self, num_equal: int, rest: list[int], salt: str) -> None:
        prompt = [0] * num_equal + rest
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
