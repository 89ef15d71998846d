"""Small tokenizers of all kinds that whet knows how to cut texts for, and of some that it does not."""

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from whet.trainer.tokens.tokenizer import load_tokenizer

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    '[!"#$%&' + r"'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = ["the one, two\nthree 's 12 a b\n\nan end. " * 3, "日本 語\nе́ x/\n/y it's IT'S\r\n  of  the\tthe 1234"]


def level(**options: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def split(pattern: str, behavior: str = "isolated", *, invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def trained(pre_tokenizer: Any, normalizer: Any = None, *, added: Any = "<|endoftext|>") -> Tokenizer:
    """A byte-pair tokenizer of a few hundred tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=360, special_tokens=["<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([added])
    return tokenizer


def sequence(*parts: Any) -> Any:
    return pre_tokenizers.Sequence(list(parts))


def words(pre_tokenizer: Any) -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate(["<unk>", "the", "one", "a", "b", ",", "s", "\n"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def metaspace(scheme: str) -> Any:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme)


KNOWN: dict[str, Callable[[], Any]] = {
    "GPT-2": lambda: trained(level()),
    "GPT-2 with NFC": lambda: trained(level(), normalizers.NFC()),
    "lower case": lambda: trained(level(), normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])),
    "GPT-4": lambda: trained(sequence(split(GPT4), level(use_regex=False))),
    "GPT-4, removed": lambda: trained(sequence(split(GPT4, "removed", invert=True), level(use_regex=False))),
    "Qwen": lambda: trained(sequence(split(QWEN), level(use_regex=False)), normalizers.NFC()),
    "GPT-4o": lambda: trained(sequence(split(GPT4O), level(use_regex=False))),
    "DeepSeek": lambda: trained(
        sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), level(use_regex=False))
    ),
    "StarCoder": lambda: trained(sequence(pre_tokenizers.Digits(individual_digits=True), level())),
    "Falcon": lambda: trained(
        sequence(pre_tokenizers.Punctuation(), level(), pre_tokenizers.Digits(), split("[0-9][0-9][0-9]"))
    ),
    "white space": lambda: words(pre_tokenizers.Whitespace()),
    "white space alone": lambda: words(pre_tokenizers.WhitespaceSplit()),
    "BERT": lambda: words(pre_tokenizers.BertPreTokenizer()),
    "metaspace, always": lambda: trained(metaspace("always")),
    "metaspace, first": lambda: trained(metaspace("first")),
    "metaspace, never": lambda: trained(metaspace("never")),
    "white space, then metaspace": lambda: trained(sequence(pre_tokenizers.WhitespaceSplit(), metaspace("first"))),
    "characters": lambda: load_tokenizer("characters", CORPUS).tokenizer,
    "bytes": lambda: load_tokenizer("bytes").tokenizer,
}

UNKNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "a prefix": (lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=True)), "pre-tokenizer ByteLevel"),
    "no words": (lambda: trained(None), "does not split text into words"),
    "digits": (lambda: trained(pre_tokenizers.Digits()), "does not split text into words"),
    "bytes before words": (lambda: trained(sequence(level(use_regex=False), split(GPT4))), "pre-tokenizer ByteLevel"),
    "another expression": (lambda: trained(split(r"\w+\s\w+|\s+")), "pre-tokenizer Split"),
    "only letters are kept": (lambda: trained(split(r"\p{N}|\s+", "removed", invert=True)), "pre-tokenizer Split"),
    "removed": (lambda: trained(split(r"\p{N}|\s+", "removed")), "pre-tokenizer Split"),
    "a prefix by its normalizer": (
        lambda: trained(None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
        "normalizer Prepend",
    ),
    "a token that takes white space": (
        lambda: trained(level(), added=AddedToken("one", rstrip=True)),
        "token 'one' takes or holds white space",
    ),
    "a token with white space": (lambda: trained(level(), added="a b"), "token 'a b' takes or holds white space"),
}
