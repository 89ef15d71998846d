"""Keys keep their replica, and none has too much: for any loads, keys and numbers of replicas."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from whet.server.replicas.ring import Ring, digest, most_load
from whet.server.replicas.routing import Router, Spot, spot_of

KEYS = st.integers(0, 2**64 - 1)


@dataclass
class One:
    number: int
    id: int
    num_open: int = 0
    got: list[Spot] = field(default_factory=list)


def replicas(loads: list[int]) -> list[One]:
    return [One(number, 100 + number, load) for number, load in enumerate(loads)]


@given(KEYS, st.integers(1, 9), st.data())
def test_removing_a_replica_moves_its_keys_alone(key: int, number: int, data: st.DataObject) -> None:
    order = list(Ring(number).order(key))
    assert sorted(order) == list(range(number))
    gone = data.draw(st.integers(0, number - 1))
    left = [one for one in replicas([0] * number) if one.number != gone]
    if left:
        chosen, _ = Router(number).choose(Spot((key,)), left)
        assert chosen.number == next(one for one in order if one != gone)


@given(KEYS, st.integers(1, 8))
def test_adding_a_replica_takes_keys_from_the_others_alone(key: int, number: int) -> None:
    before, after = next(Ring(number).order(key)), next(Ring(number + 1).order(key))
    assert after in (before, number)


def test_the_ring_is_divided_about_evenly() -> None:
    shares = Counter(next(Ring(4).order(digest(str(i).encode()))) for i in range(4000))
    assert min(shares.values()) > 700 and max(shares.values()) < 1300


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9))
def test_one_always_has_room_and_the_bound_is_a_quarter_above_the_mean(loads: list[int]) -> None:
    most = most_load(loads)
    assert min(loads) < most
    assert most < 1.25 * (sum(loads) + 1) / len(loads) + 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=60), st.integers(1, 5))
def test_the_bound_holds_and_a_known_beginning_wins_while_it_does(
    asked: list[tuple[int, int, bool]], number: int
) -> None:
    """Requests with some of six beginnings of one to six blocks, of which some end."""
    router, all_ = Router(number), replicas([0] * number)
    for prompt, length, ends in asked:
        blocks: list[int] = []
        for place in range(length):
            blocks.append(digest(f"{prompt}/{place}".encode(), blocks[-1] if blocks else 0))
        spot = Spot(tuple(blocks))
        most = most_load([one.num_open for one in all_])
        chosen, why = router.choose(spot, all_)
        router.sent(spot, chosen)
        assert chosen.num_open < most
        known = {one.number: len(common(one.got, blocks)) for one in all_ if one.num_open < most}
        if why == "prefix":
            assert known[chosen.number] == max(known.values()) > 0
        else:
            assert max(known.values()) == 0
        chosen.got.append(spot)
        chosen.num_open += 1
        if ends:
            max(all_, key=lambda one: one.num_open).num_open -= 1


def common(got: list[Spot], blocks: list[int]) -> list[int]:
    known = {block for spot in got for block in spot.blocks}
    return [block for block in blocks if block in known]


def test_the_same_prefix_goes_to_the_same_replica_and_other_ones_are_spread() -> None:
    router, all_ = Router(4), replicas([0, 0, 0, 0])
    found: dict[int, set[int]] = {}
    for turn in range(5):
        for conversation in range(40):
            body = (f'{{"prompt": "{conversation}' + " and more" * 30 + " and more" * 50 * turn + '"}').encode()
            chosen, why = router.choose(spot := spot_of("/v1/completions", "", body), all_)
            router.sent(spot, chosen)
            assert why == ("prefix" if turn else "ring")
            found.setdefault(conversation, set()).add(chosen.number)
    assert all(len(numbers) == 1 for numbers in found.values())
    assert len(set().union(*found.values())) == 4


def test_a_replica_that_was_started_again_knows_nothing() -> None:
    router = Router(2)
    spot = spot_of("/v1/completions", "", b'{"prompt": "' + b"x" * 600)
    own = next(Ring(2).order(spot.blocks[0]))
    other = 1 - own
    router.sent(spot, One(other, 7))
    assert router.choose(spot, [One(own, 6), One(other, 7)])[0].number == other
    assert router.choose(spot, [One(own, 6), One(other, 8)])[0].number == own


def test_without_a_prompt_the_one_with_the_fewest_is_taken() -> None:
    for path, body in (("/v2/models/small/infer", b"{}"), ("/tokenize", b'{"prompt": "x"}'), ("/v1/completions", b"")):
        chosen, why = Router(3).choose(spot_of(path, "", body), replicas([3, 1, 2]))
        assert (chosen.number, why) == (1, "load")


def test_what_is_remembered_is_bounded() -> None:
    router = Router(2)
    for i in range(2**16 + 100):
        router.sent(Spot((i,)), One(0, 0))
    assert len(router._holders) == 2**16
