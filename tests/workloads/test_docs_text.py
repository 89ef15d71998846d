from pydoc_data.topics import topics

import pytest
import torch

from whet.workloads import docs_text
from whet.workloads.docs_text import is_held_out, num_bytes, paragraphs, running_text, text_by_topic, windows


def test_sides_do_not_share_a_paragraph_and_miss_none():
    sides = [set(running_text(held_out=side).split("\n\n")) for side in (False, True)]
    assert not sides[0] & sides[1]
    assert {line for p in paragraphs() for line in p.split("\n\n")} == sides[0] | sides[1]
    share = len(running_text(held_out=True)) / sum(map(len, paragraphs()))
    assert 0.15 < share < 0.35


def test_split_is_stable_under_what_other_python_versions_change():
    """Paragraphs keep their side when topics come, go or are reordered, and when their later words change."""
    text = topics["assignment"]
    changed = {"a-new-topic": "Something new.\n\n" + text, "zz": topics["strings"], "assignment": "First.\n\n" + text}
    before = {p: is_held_out(p) for p in paragraphs({"assignment": text})}
    after = {p: is_held_out(p) for p in paragraphs(changed)}
    assert before.items() <= after.items()
    for paragraph in before:
        words = paragraph.split()
        if len(words) > 12:
            assert is_held_out(" ".join([*words[:12], "changed"])) == before[paragraph]


def test_split_is_fixed_for_ever():
    """Known answers: a change here moves training text into the held-out side of weights already shipped."""
    assert [i for i in range(12) if is_held_out(f"paragraph number {i}")] == [4]


def test_shared_paragraphs_have_no_topic():
    texts = {"a": "one\n\ntwo\n\nthree", "b": "two\n\n\nfour"}
    assert paragraphs(texts) == {
        "one": frozenset("a"),
        "two": frozenset("ab"),
        "three": frozenset("a"),
        "four": frozenset("b"),
    }
    both = [text_by_topic(held_out=side, topics=texts) for side in (False, True)]
    found = {topic: {p for side in both for p in side.get(topic, "").split("\n\n") if p} for topic in "ab"}
    assert found == {"a": {"one", "three"}, "b": {"four"}}


def test_windows():
    assert windows(torch.arange(7), 3, 2).tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert windows(torch.arange(2), 3, 2).shape == (0, 3)


def test_bytes_of_tokens():
    pytest.importorskip("tokenizers")
    from whet.workloads import WEIGHTS

    tokenizer = docs_text.load_tokenizer(WEIGHTS / "docs-gpt")
    text = "def f(x): return “naïve” – 日本\n\n    " + running_text(held_out=True)[:5000]
    ids = docs_text.token_ids(tokenizer, text)
    assert tokenizer.decode(ids.tolist()) == text
    assert num_bytes(tokenizer, ids) == len(text.encode())
