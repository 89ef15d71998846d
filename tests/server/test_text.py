"""Text and tokens: judged by the tokenizers library's own decoding of the whole, and by transformers' templates."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from whet.errors import RequestError, TargetError
from whet.server.text import Detokenizer, Tokenizer

DOCS_GPT = Path(__file__).parents[2] / "src/whet/workloads/weights/docs-gpt"
GPT2 = Path(__file__).parents[3] / "shared/data/tokenizer"
OURS = Tokenizer(DOCS_GPT)
HARD = "naïve Ünïcode 漢字 日本語 🙂👩‍👩‍👧 x\u0301 \t\n  end"


def write(directory: Path, library: Library, **settings: Any) -> Tokenizer:
    library.save(str(directory / "tokenizer.json"))
    for name, value in settings.items():
        (directory / f"{name}.json").write_text(json.dumps(value))
    return Tokenizer(directory)


def byte_fallback() -> Library:
    """As Llama 2's: a space is U+2581, what is not in the vocabulary is spelt in bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "h", "e", "l", "o", "i", "�", "▁h", "el", "lo"]
    vocabulary = {word: id for id, word in enumerate(words)}
    merges = [("▁", "h"), ("e", "l"), ("l", "o")]
    library = Library(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    library.decoder = decoders.Sequence(parts)
    library.add_special_tokens(["<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return library


def word_pieces() -> Library:
    words = ["[UNK]", "un", "##able", "##s", "like", ",", "."]
    library = Library(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library


def metaspace() -> Library:
    words = ["<unk>", "▁", "▁the", "▁cat", "s", "▁sat"]
    library = Library(models.WordLevel({word: id for id, word in enumerate(words)}, unk_token="<unk>"))
    library.decoder = decoders.Metaspace()
    return library


def pieces(detokenizer: Detokenizer, ids: Sequence[int], widths: Sequence[int]) -> list[str]:
    """The text in pieces of so many tokens, over and over, and what is left at the end."""
    found, start, turn = [], 0, 0
    while start < len(ids):
        width = widths[turn % len(widths)]
        found.append(detokenizer.add(ids[start : start + width]))
        start, turn = start + width, turn + 1
    return [*found, detokenizer.finish()]


@pytest.fixture(scope="module", params=[byte_fallback, word_pieces, metaspace])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write(tmp_path_factory.mktemp("other"), request.param())


Widths = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@given(st.text(max_size=60), Widths)
def test_any_text_comes_back_in_pieces(text: str, widths: list[int]) -> None:
    ids = OURS.encode(text)
    assert OURS.decode(ids) == text
    assert "".join(pieces(OURS.detokenizer(), ids, widths)) == text
    assert b"".join(map(OURS.token_bytes, ids)) == text.encode()


@given(st.lists(st.integers(0, 2100), max_size=40), Widths)
def test_any_bytes_read_as_the_whole_does(ids: list[int], widths: list[int]) -> None:
    """Tokens as a model without sense chooses them: parts of characters, special tokens, ids beyond the vocabulary."""
    assert "".join(pieces(OURS.detokenizer(), ids, widths)) == OURS.decode(ids)


@given(st.data())
def test_other_vocabularies_read_as_the_whole_does(other: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, other.vocab_size + 2), max_size=30))
    assert "".join(pieces(other.detokenizer(), ids, data.draw(Widths))) == other.decode(ids)


@given(st.lists(st.sampled_from(["hello", " he", "🙂", "é", "漢", "�", "\u0301"]), max_size=8), Widths)
def test_characters_spelt_in_bytes(byte_tokenizer: Tokenizer, words: list[str], widths: list[int]) -> None:
    text = "".join(words)
    ids = byte_tokenizer.encode(text)
    assert "".join(pieces(byte_tokenizer.detokenizer(), ids, widths)) == byte_tokenizer.decode(ids) == text


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write(tmp_path_factory.mktemp("bytes"), byte_fallback())


def test_a_character_comes_whole_and_as_soon_as_it_is(byte_tokenizer: Tokenizer) -> None:
    detokenizer = OURS.detokenizer()
    assert [detokenizer.add([id]) for id in OURS.encode("🙂")] == ["", "", "", "🙂"]
    detokenizer = byte_tokenizer.detokenizer()
    ids = byte_tokenizer.encode("🙂lo", add_special=False)
    assert [detokenizer.add([id]) for id in ids] == ["", "", "", "", "", "🙂lo"]


def test_half_a_character_at_the_end_is_shown_as_what_it_is() -> None:
    detokenizer = OURS.detokenizer()
    assert detokenizer.add(OURS.encode("🙂")[:2]) == ""
    assert detokenizer.finish() == "�"


def test_special_tokens(tmp_path: Path) -> None:
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    tokenizer = write(tmp_path, byte_fallback(), tokenizer_config=settings, generation_config={"eos_token_id": [2, 7]})
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, {2, 7})
    assert tokenizer.encode("hi")[0] == 1
    assert tokenizer.encode("hi", add_special=False)[0] != 1
    ids = [*tokenizer.encode("hello"), 2]
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, skip_special=False) == "<s> hello</s>"
    assert (tokenizer.token_bytes(2), tokenizer.token_bytes(3 + 0xE2), tokenizer.token_text(3 + 0xE2)) == (
        b"</s>",
        b"\xe2",
        "�",
    )
    assert tokenizer.token_text(tokenizer.encode("hi")[1]) == " h"


def test_a_saved_limit_does_not_cut_prompts(tmp_path: Path) -> None:
    library = Library.from_file(str(DOCS_GPT / "tokenizer.json"))
    library.enable_truncation(4)
    library.enable_padding(length=32)
    assert len(write(tmp_path, library).encode("one two three four five six")) > 4


CLS, SEP = ("[CLS]", 0), ("[SEP]", 1)
TEMPLATE = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[CLS, SEP]
)


@pytest.mark.parametrize(
    "processor",
    [
        None,
        processors.ByteLevel(),
        processors.BertProcessing(SEP, CLS),
        processors.RobertaProcessing(SEP, CLS),
        TEMPLATE,
        processors.Sequence([processors.ByteLevel(), TEMPLATE]),
    ],
)
def test_parts_join_to_what_the_library_makes_of_the_whole(tmp_path: Path, processor: Any) -> None:
    words = ["[CLS]", "[SEP]", "[UNK]", "a", "cat", "sits"]
    library = Library(models.WordLevel({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    if processor is not None:
        library.post_processor = processor
    tokenizer = write(tmp_path, library)
    texts = ["a cat", "", "a cat sits on a cat"]
    for text in texts:
        whole = library.encode(text)
        [part] = tokenizer.parts([text])
        assert tokenizer.joined(part) == (whole.ids, whole.type_ids)
        for other in texts:
            pair = library.encode(text, other)
            first, second = tokenizer.parts([text, other])
            assert tokenizer.joined(first, second) == (pair.ids, pair.type_ids)
            cut = library.encode(text, "a cat sits")
            most = len(cut.ids)
            if other == texts[-1]:
                assert tokenizer.joined(first, second, most=most) == (cut.ids, cut.type_ids)


def test_text_that_is_no_unicode_is_the_callers_mistake() -> None:
    with pytest.raises(RequestError, match="not valid Unicode at character 3"):
        OURS.encode("abc\ud83d")


def test_the_built_in_model() -> None:
    assert (OURS.vocab_size, OURS.bos_id, OURS.eos_ids) == (2048, 0, {0})
    assert OURS.chat_template.is_plain
    messages = [{"role": "user", "content": "Hi"}]
    assert OURS.chat(messages) == "<|start|>User: Hi\nAssistant:"
    assert OURS.chat(messages, add_generation_prompt=False) == "<|start|>User: Hi\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "has no tokenizer.json"), ("{", "cannot be read as a tokenizer"), ("{}", "cannot be read as a tokenizer")],
)
def test_a_missing_or_damaged_file(tmp_path: Path, content: str | None, message: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TargetError, match=message):
        Tokenizer(tmp_path)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"neither config.json nor tokenizer.json: it is no model directory"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(("size", "message"), [(200, "up to 268"), (32_000, "knows 269 tokens, the model 32000")])
def test_a_tokenizer_of_another_model(tmp_path: Path, size: int, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        write(tmp_path, byte_fallback(), config={"vocab_size": size})


def test_other_files_that_are_damaged(tmp_path: Path) -> None:
    write(tmp_path, byte_fallback())
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(TargetError, match=r"tokenizer_config\.json cannot be read"):
        Tokenizer(tmp_path)


TEMPLATES = [
    # headers and trimmed content
    "{{ bos_token }}{% for m in messages %}\n    {{- '<|' + m['role'] + '|>\\n' + m['content'] | trim + eos_token }}\n"
    "{% endfor %}\n{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    # loop controls, a namespace, JSON as it is
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m | tojson }}{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}"
    "{{ messages | tojson(indent=2) }}",
    # what training marks
    "{% for m in messages %}\n{% generation %}\n  {{ m.content }}\n{% endgeneration %}\n{% endfor %}",
    # variables of the request
    "{% if thinking is defined and thinking %}<think>{% endif %}{{ messages[0].content }}{{ unknown_token }}",
]
MESSAGES = [
    {"role": "system", "content": " Be <brief> & 'kind'. "},
    {"role": "user", "content": '漢字 "quoted"\n'},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "more"},
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_read_as_transformers_reads_them(tmp_path: Path, template: str) -> None:
    transformers = pytest.importorskip("transformers")
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    ours = write(tmp_path, byte_fallback(), tokenizer_config=settings)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    for prompt in (True, False):
        wanted = theirs.apply_chat_template(
            MESSAGES, chat_template=template, tokenize=False, add_generation_prompt=prompt, thinking=True
        )
        assert ours.chat(MESSAGES, prompt, {"thinking": True}) == wanted


def chat_tokenizer(directory: Path, template: object) -> Tokenizer:
    return write(directory, byte_fallback(), tokenizer_config={"chat_template": template})


def test_where_a_template_is_looked_for(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    assert chat_tokenizer(tmp_path, named).chat([]) == "named"
    (tmp_path / "chat_template.jinja").write_text("a file, on {{ strftime_now('%Y') | length }} digits")
    assert chat_tokenizer(tmp_path, named).chat([]) == "a file, on 4 digits"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "does not take these messages: roles must alternate"),
        ("{{ messages[0].content + messages[0] }}", "fails on these messages: TypeError"),
        ("{{ messages[7].content.strip() }}", "does not take these messages"),
        ("{{ messages.append(1) }}", "does not take these messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "does not take these messages"),
        ("{% for i in range(10000000) %}x{% endfor %}", "fails on these messages"),
    ],
)
def test_what_a_template_says_against_a_request(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        chat_tokenizer(tmp_path, template).chat([{"role": "user", "content": "Hi"}])


def test_a_damaged_template_is_found_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"chat template .* is damaged"):
        chat_tokenizer(tmp_path, "{% for m in messages %}")


@pytest.mark.realdata
@pytest.mark.skipif(not GPT2.is_dir(), reason="../shared/data/tokenizer is not here")
def test_gpt2(tmp_path: Path) -> None:
    library = tokenizers.ByteLevelBPETokenizer(str(GPT2 / "gpt2_vocab.json"), str(GPT2 / "gpt2_merges.txt"))
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.vocab_size == 50_257
    assert tokenizer.encode("Hello world") == [15496, 995]
    ids = tokenizer.encode(HARD)
    assert "".join(pieces(tokenizer.detokenizer(), ids, [1])) == tokenizer.decode(ids) == HARD
