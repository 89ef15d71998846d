"""Tokenizers of characters and bytes give every text back, here, in transformers and in whet's server."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_tokenizers import KNOWN

from whet.errors import TargetError
from whet.server.text import Tokenizer as Served
from whet.trainer.tokens.tokenizer import END, UNKNOWN, LoadedTokenizer, completed, load_tokenizer, save_tokenizer

TEXT = "First Citizen:\nBefore we proceed,  hear\tme.\r\n日本 é 🙂"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[LoadedTokenizer, Path]]:
    found = {}
    for name in ("characters", "bytes"):
        loaded = load_tokenizer(name, [TEXT[:20], TEXT[20:]])
        directory = tmp_path_factory.mktemp(name)
        save_tokenizer(loaded, directory)
        found[name] = loaded, directory
    return found


def test_characters_come_in_order_and_others_are_unknown() -> None:
    tokenizer, end_id = load_tokenizer("characters", ["cab", "ad\n"])
    assert tokenizer.encode("\nabcd").ids == [0, 1, 2, 3, 4]
    assert tokenizer.encode("xa").ids == [5, 1]
    assert tokenizer.id_to_token(5) == UNKNOWN
    assert end_id == tokenizer.token_to_id(END) == 6
    assert load_tokenizer("characters", ["abc"]).num_ids == 5
    with pytest.raises(TargetError, match="a tokenizer of characters is made from a text, and there is none"):
        load_tokenizer("characters", [""])


@given(st.text(max_size=60))
def test_bytes_are_their_own_ids(text: str) -> None:
    tokenizer, end_id = load_tokenizer("bytes")
    ids = tokenizer.encode(text).ids
    if END not in text:
        assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert end_id == 256


@given(st.text(TEXT, max_size=60))
def test_characters_give_the_text_back(text: str) -> None:
    tokenizer, _ = load_tokenizer("characters", [TEXT])
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", ["characters", "bytes"])
def test_they_are_the_same_in_transformers_and_in_the_server(
    name: str, saved: dict[str, tuple[LoadedTokenizer, Path]]
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    loaded, directory = saved[name]
    theirs = transformers.AutoTokenizer.from_pretrained(str(directory))
    served, again = Served(directory), load_tokenizer(directory)
    ids = loaded.tokenizer.encode(TEXT).ids
    assert theirs(TEXT)["input_ids"] == served.encode(TEXT) == again.tokenizer.encode(TEXT).ids == ids
    assert theirs.decode(ids) == served.decode(ids) == TEXT
    assert theirs.eos_token_id == loaded.end_id == again.end_id
    assert served.eos_ids == {loaded.end_id}
    assert theirs.decode([*ids, loaded.end_id], skip_special_tokens=True) == TEXT
    spoken = served.detokenizer()
    assert spoken.add(ids) + spoken.finish() == TEXT
    messages = [{"role": "user", "content": "me"}, {"role": "assistant", "content": "we"}]
    told = f"User: me\nAssistant: we{END}\n"
    assert theirs.apply_chat_template(messages, tokenize=False) == told
    assert served.chat(messages, add_generation_prompt=False) == told
    assert served.chat(messages[:1]) == "User: me\nAssistant:"


def test_a_checkpoint_says_which_token_ends_a_text(tmp_path: Path) -> None:
    library = KNOWN["GPT-2"]()
    library.add_special_tokens(["<stop>", "</s>"])
    library.enable_truncation(3)
    library.save(str(tmp_path / "tokenizer.json"))
    stop, other = library.token_to_id("<stop>"), library.token_to_id("</s>")

    def found(**files: Any) -> int | None:
        for path in tmp_path.glob("*_*.json"):
            path.unlink()
        (tmp_path / "config.json").unlink(missing_ok=True)
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return load_tokenizer(tmp_path / "tokenizer.json").end_id

    assert found(tokenizer_config={"eos_token": {"content": "<stop>"}}) == stop
    assert found(special_tokens_map={"eos_token": "<stop>"}) == stop
    assert found(generation_config={"eos_token_id": [other, stop]}, config={"eos_token_id": stop}) == other
    assert found(config={"eos_token_id": stop}) == stop
    assert found() == library.token_to_id(END), "it is a known one"
    loaded = load_tokenizer(tmp_path)
    assert len(loaded.tokenizer.encode("one two three").ids) > 3, "a text is not cut off"
    assert completed(loaded) is loaded
    assert completed(KNOWN["metaspace, never"]()).end_id is not None


def test_what_a_checkpoint_says_of_its_tokenizer_is_saved_with_it(tmp_path: Path) -> None:
    library = KNOWN["GPT-2"]()
    library.add_special_tokens(["<stop>", "<pad>"])
    (tmp_path / "old").mkdir()
    library.save(str(tmp_path / "old/tokenizer.json"))
    (tmp_path / "old/tokenizer_config.json").write_text('{"eos_token": "<stop>", "model_max_length": 77}')
    (tmp_path / "old/special_tokens_map.json").write_text('{"pad_token": {"content": "<pad>", "lstrip": false}}')
    (tmp_path / "old/chat_template.jinja").write_text("{{ messages[0].content }}{{ eos_token }}")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/chat_template.jinja").write_text("of before")
    save_tokenizer(load_tokenizer(tmp_path / "old"), tmp_path / "new")
    again = load_tokenizer(tmp_path / "new")
    assert (again.settings["model_max_length"], again.settings["pad_token"]["content"]) == (77, "<pad>")
    assert again.end_id == library.token_to_id("<stop>")
    assert again.template.text == "{{ messages[0].content }}{{ eos_token }}"
    assert again.template.special_tokens == {"eos_token": "<stop>", "pad_token": "<pad>"}


def test_tokenizers_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        TargetError, match=r"there is no tokenizer gpt2: name characters, bytes, a tokenizer\.json, or a"
    ):
        load_tokenizer("gpt2")
    with pytest.raises(TargetError, match=r"has no tokenizer\.json: name characters"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TargetError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        load_tokenizer(tmp_path)
