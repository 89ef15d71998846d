"""Which requests share a key, and in which order replicas are asked for it."""

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from whet.server.ray_serve.keys import Keys
from whet.server.ray_serve.ranking import ranked

SYSTEM = {"role": "system", "content": "You answer questions on the history of rivers. " * 10}


def chat(*said: str, **others: object) -> bytes:
    roles = ["user", "assistant"]
    turns = [{"role": roles[place % 2], "content": text} for place, text in enumerate(said)]
    return json.dumps({**others, "messages": [SYSTEM, *turns]}).encode()


def test_a_conversation_keeps_its_key_while_it_grows() -> None:
    keys = Keys()
    first = "What did the Danube look like before it was straightened? " * 5
    said = [first]
    key = keys.key(chat(*said))
    for turn in range(5):
        said += [f"Answer {turn}. " * 9, f"And question {turn}? " * 9]
        assert keys.key(chat(*said, temperature=turn)) == key


def test_a_common_system_prompt_is_a_common_beginning() -> None:
    keys = Keys()
    assert len({keys.key(chat(f"Question {number}: " + "why? " * number)) for number in range(20)}) == 1


def test_what_begins_otherwise_has_another_key() -> None:
    keys = Keys()
    found = {keys.key(json.dumps({"prompt": f"{number} " * 200}).encode()) for number in range(50)}
    assert len(found) == 50


def test_short_prompts_that_begin_alike_have_keys_of_their_own() -> None:
    keys = Keys()
    assert keys.key(b'{"prompt": "What is a river?"}') != keys.key(b'{"prompt": "What is a sea?"}')
    assert keys.key(b'{"prompt": "What is a sea?"}') == keys.key(b'{"prompt": "What is a sea?"}')


def test_other_salts_share_no_key() -> None:
    keys = Keys()
    assert len({keys.key(chat("Why?"), salt) for salt in ("", "a", "b")}) == 3


def test_no_prompt_no_key() -> None:
    assert Keys().key(b"") == Keys().key(b'{"documents": []}') == ""


def test_no_more_is_remembered_than_may_be() -> None:
    keys = Keys(most=100)
    for number in range(50):
        keys.key(json.dumps({"prompt": f"{number} " * 500}).encode())
    assert len(keys._known) == 100


NAMES = st.lists(st.text("abcdef", min_size=1, max_size=6), min_size=1, max_size=8, unique=True)


@given(NAMES, st.text(max_size=20), st.data())
def test_all_replicas_are_asked_once_and_none_that_has_too_much_first(
    names: list[str], key: str, data: st.DataObject
) -> None:
    loads = {name: data.draw(st.integers(0, 100)) for name in names}
    order = ranked(key, names, loads.__getitem__)
    assert sorted(order) == sorted(names)
    mean = (sum(loads.values()) + 1) / len(names)
    assert loads[order[0]] < 1.25 * mean + 1


@given(NAMES, st.text(min_size=1, max_size=20))
def test_a_replica_that_ends_moves_only_its_own_keys(names: list[str], key: str) -> None:
    first, *rest = ranked(key, names, lambda _: 0)
    for name in rest:
        assert ranked(key, [one for one in names if one != name], lambda _: 0)[0] == first
    if rest:
        assert ranked(key, rest, lambda _: 0) == rest


def test_keys_are_spread_over_the_replicas() -> None:
    names = ["a", "b", "c", "d"]
    found = Counter(ranked(f"key {number}", names, lambda _: 0)[0] for number in range(4000))
    assert all(850 < found[name] < 1150 for name in names)  # five standard deviations around 1,000


def test_without_a_key_the_idlest_is_first() -> None:
    assert ranked("", ["a", "b", "c"], {"a": 2, "b": 0, "c": 1}.__getitem__) == ["b", "c", "a"]
