"""Answers alone are learnt, token by token, as transformers' own mask says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_tokenizers import KNOWN
from token_stores import documents_in

from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.errors import TargetError
from whet.trainer.tokens.chat import DEFAULT_TEMPLATE, Segment, segments_of
from whet.trainer.tokens.tokenise import tokenised
from whet.trainer.tokens.tokenizer import LoadedTokenizer, load_tokenizer, save_tokenizer

SPECIAL = ["<|im_start|>", "<|im_end|>"]
PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|im_end|>{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONVERSATIONS = [
    [{"role": "user", "content": "the one?"}, {"role": "assistant", "content": "one two\nthree.  "}],
    [
        {"role": "system", "content": "be the one"},
        {"role": "user", "content": "a b"},
        {"role": "assistant", "content": "it's 1234 é"},
        {"role": "user", "content": "\n and?\n"},
        {"role": "assistant", "content": " 日本"},
        {"role": "user", "content": "the end"},
    ],
    [{"role": "assistant", "content": "x"}],
]


def loaded_with(directory: Path, template: str) -> LoadedTokenizer:
    library = KNOWN["GPT-2"]()
    library.add_special_tokens(SPECIAL)
    directory.mkdir()
    library.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(directory)


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def learnt(path: Path, loaded: LoadedTokenizer, cache: Path) -> list[tuple[list[int], list[int]]]:
    """The tokens and the mask of each document."""
    store = tokenised(path, loaded, cache=cache)
    assert store.trained is not None
    bounds = list(zip(store.starts[:-1].tolist(), store.starts[1:].tolist(), strict=True))
    return [(store.tokens[a:b].tolist(), store.trained[a:b].tolist()) for a, b in bounds]


@pytest.mark.parametrize("template", [MARKED, PLAIN], ids=["marked", "by prefixes"])
def test_the_mask_is_that_of_transformers(tmp_path: Path, template: str) -> None:
    """Answers are bounded by special tokens, so that both agree on every token."""
    transformers: Any = pytest.importorskip("transformers")
    loaded = loaded_with(tmp_path / "model", template)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "model"))
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": messages} for messages in CONVERSATIONS])
    for messages, (ids, mask) in zip(CONVERSATIONS, learnt(path, loaded, tmp_path / "cache"), strict=True):
        wanted = theirs.apply_chat_template(
            messages, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
        )
        assert ids == wanted["input_ids"]
        assert mask == wanted["assistant_masks"]
        answers = "".join(f"{message['content']}<|im_end|>" for message in messages if message["role"] == "assistant")
        assert theirs.decode([one for one, is_learnt in zip(ids, mask, strict=True) if is_learnt]) == answers


def test_without_a_template_the_plain_one_ends_each_answer(tmp_path: Path) -> None:
    loaded = load_tokenizer("bytes")
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": CONVERSATIONS[1]}, {"prompt": "a ", "completion": "bé"}])
    (ids, mask), (more, other) = learnt(path, loaded, tmp_path / "cache")
    told = "System: be the one\nUser: a b\nAssistant: it's 1234 é<|endoftext|>\nUser: \n and?\n\nAssistant: 日本"
    answers = [" it's 1234 é<|endoftext|>", "  日本<|endoftext|>"]
    assert loaded.tokenizer.decode(ids, skip_special_tokens=False).startswith(
        told.replace("Assistant: 日本", "Assistant:  日本")
    )
    found = [one for one, is_learnt in zip(ids, mask, strict=True) if is_learnt]
    assert loaded.tokenizer.decode(found, skip_special_tokens=False) == "".join(answers)
    assert more == [*"a bé".encode(), 256]
    assert other == [0, 0, 1, 1, 1, 1], "the end of a completion is learnt"


def test_a_server_asks_with_what_was_not_learnt(tmp_path: Path) -> None:
    """The tokens before an answer are those that a server makes of the messages before it."""
    from whet.server.text import Tokenizer as Served

    for number, template in enumerate((MARKED, PLAIN, None)):
        loaded = load_tokenizer("bytes") if template is None else loaded_with(tmp_path / str(number), template)
        save_tokenizer(loaded, tmp_path / f"saved{number}")
        served = Served(tmp_path / f"saved{number}")
        path = write_lines(tmp_path / f"{number}.jsonl", [{"messages": CONVERSATIONS[0]}])
        ((ids, mask),) = learnt(path, loaded, tmp_path / "cache")
        asked = served.encode(served.chat(CONVERSATIONS[0][:1]), add_special=False)
        assert ids[: mask.index(1)] == asked
        last = len(mask) - mask[::-1].index(1)
        assert ids[last - 1] in served.eos_ids, "what is learnt ends where a server stops"


def test_segments_of_templates() -> None:
    def found(template: str, messages: Any, **names: str) -> list[Segment]:
        return segments_of(ChatTemplate(None, {"chat_template": template}, names), messages)

    chat = CONVERSATIONS[0]
    shown = "<|im_start|>user\nthe one?<|im_end|>\n<|im_start|>assistant\n"
    answer = "one two\nthree.  <|im_end|>"
    assert found(MARKED, chat) == [Segment(shown, False), Segment(answer, True), Segment("\n", False)]
    assert found(PLAIN, chat, eos_token="<|im_end|>") == found(MARKED, chat)
    assert found(PLAIN, chat) == [Segment(shown, False), Segment(answer + "\n", True)], "nothing says that it ends"
    assert found(DEFAULT_TEMPLATE, chat[:1]) == [Segment("User: the one?\n", False)]
    twice = "{% generation %}a{% endgeneration %}{% generation %}b{% endgeneration %}"
    assert found(twice, chat) == [Segment("ab", True)]


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (
            "{% for m in messages %}{{ m.content if loop.last else 'x' }}{% endfor %}",
            CONVERSATIONS[1],
            "shows message 2 otherwise where more messages follow.*put {% generation %}",
        ),
        (
            PLAIN.replace("{% if add_generation_prompt %}", "{% if add_generation_prompt %}!"),
            CONVERSATIONS[0],
            "message 1",
        ),
        ("{{ raise_exception('no system') }}", CONVERSATIONS[0], "does not take these messages: no system"),
        ("{{ messages.nothing.more }}", CONVERSATIONS[0], "does not take these messages"),
        (
            "{% set x %}{% generation %}abc{% endgeneration %}{% endset %}{{ x[:21] }}",
            CONVERSATIONS[0],
            "shows half of a block that it marks as generation",
        ),
        (PLAIN, "Hi", "a conversation is a list of messages"),
        (PLAIN, [{"role": 1, "content": ""}], "message 0 needs role and content"),
        (PLAIN, ["Hi"], "message 0 needs role and content; it has: str"),
    ],
)
def test_conversations_and_templates_that_do_not_fit(template: str, messages: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        segments_of(ChatTemplate(None, {"chat_template": template}, {}), messages)


def test_files_without_answers_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": CONVERSATIONS[1][:2]}])
    with pytest.raises(TargetError, match="nothing in the files is to be learnt: no conversation has an answer"):
        tokenised(path, load_tokenizer("bytes"), cache=tmp_path / "cache")


def test_running_text_beside_conversations_is_learnt(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "mixed.jsonl", [{"text": "ab"}, {"messages": CONVERSATIONS[2]}, {"text": "cd"}])
    store = tokenised(path, load_tokenizer("bytes"), cache=tmp_path / "cache")
    assert store.trained is not None
    assert documents_in(store)[0] == [*b"ab", 256]
    whole = np.asarray(store.trained)
    assert whole[:3].all()
    assert whole[-3:].all()
    assert not whole[3 : 3 + len("Assistant:")].any()
