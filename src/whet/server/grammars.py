"""Compile structures to grammars over a tokenizer's vocabulary, and keep the place of a request in its grammar.

The library is llguidance: it takes JSON schemas, regular expressions and grammars, computes the allowed tokens on the
fly, and refuses what it cannot enforce, where xgrammar accepts a schema and leaves out the keyword.
Source: github.com/guidance-ai/llguidance.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

from whet.errors import MissingExtra, RequestError, reason
from whet.server.schemas.writing import grammar
from whet.server.structure import Structure
from whet.server.structure_size import why_too_large
from whet.server.text import Tokenizer

_MOST_KEPT = 64  # compiled structures
_MOST_FUEL = 2_000_000  # for the expressions of one structure: about 40 ms
_MOST_SYMBOLS = 200_000  # of one grammar
_MOST_ITEMS = 10_000  # of the parser for one mask: about 20 ms; every request of a step waits for each mask
_MOST_STEP_FUEL = 200_000  # for the expressions of one mask: about 4 ms
_STACK_BYTES = 512 * 2**20  # of the thread that compiles: only what is used of it takes memory
_STARTING = threading.Lock()  # the size of the stack is set for all threads that start
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"
_WORDS = "[a-z]+"  # a mask that allows all tokens of such a set is made from the set: half the time for many grammars
_BEFORE = "\x02"  # a character that no token continues
_AS_OBJECTS = {"true": "{}", "false": '{"enum":[]}'}  # the library takes options for objects only
_TOO_MANY = re.compile("Too many items|Current row has [0-9]+ items")  # as the library says it
_TOO_MUCH = re.compile("lexer precomputation failed|fuel exhausted|Unable to determine if regex is empty")
_LONGEST_REASON = 500  # characters of what the library says


class Guide:
    """A guide knows the place of one request in its grammar. It is used by one thread at a time."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.error: str | None = None  # why no mask can be had any more

    def consume(self, token_id: int) -> bool:
        """Go on by a token of the output.

        Returns:
            Whether the output is complete: nothing can follow.

        Raises:
            RequestError: The grammar does not allow the token.
        """
        if not self.matcher.consume_token(token_id):
            raise RequestError(f"the structure cannot go on: {_short(self.matcher.get_error())}")
        return bool(self.matcher.is_stopped())

    def has_failed(self) -> bool:
        """Return whether something went wrong with the last mask, and note in `error` what."""
        if self.error is None and self.matcher.is_error():
            self.error = f"the structure cannot go on: {_short(self.matcher.get_error())}"
        return self.error is not None

    def copy(self) -> "Guide":
        """Return a guide at the same place, for another request."""
        return Guide(self.matcher.deep_copy())

    def num_valid(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, one after another, the grammar allows next."""
        return int(self.matcher.validate_tokens(list(token_ids)))


class Grammars:
    """Compiles structures for one vocabulary, and keeps those that were used last. From any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Start with no structure. Nothing is imported or built before the first one.

        Args:
            tokenizer: Says which bytes each token stands for.
            vocab_size: The number of the model's logits. One more token stands for the end wherever a grammar allows
                it, so that the end does not depend on which of the model's tokens end an output.
        """
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._library: Any = None
        self._vocabulary: Any = None
        self._building = threading.Lock()
        self._changing = threading.Lock()
        self._compiled: OrderedDict[Structure, Any] = OrderedDict()

    def guide(self, structure: Structure) -> Guide:
        """Return the beginning of a structure's grammar, compiled now unless it was before.

        Raises:
            RequestError: The structure is none, is too large, or uses what cannot be enforced.
            MissingExtra: llguidance is not installed.
        """
        with self._changing:
            matcher = self._compiled.get(structure)
            if matcher is not None:
                self._compiled.move_to_end(structure)
        if matcher is None:
            matcher = _on_large_stack(lambda: self._compile(structure))
            with self._changing:
                self._compiled[structure] = matcher
                while len(self._compiled) > _MOST_KEPT:
                    self._compiled.popitem(last=False)
        return Guide(matcher.deep_copy())

    def _compile(self, structure: Structure) -> Any:
        structure.check()
        if (why := why_too_large(structure)) is not None:
            raise _refused(structure, why)
        self._build()
        grammar = self._grammar(structure)
        limits = self._library.LLParserLimits(
            initial_lexer_fuel=_MOST_FUEL,
            step_lexer_fuel=_MOST_STEP_FUEL,
            step_max_items=_MOST_ITEMS,
            max_grammar_size=_MOST_SYMBOLS,
            verbose_errors=False,
        )
        matcher = self._library.LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        error = matcher.get_error()
        if not error:
            matcher.compute_bitmask()  # what can go wrong with the first token goes wrong here
            error = matcher.get_error()
        if error:
            raise _refused(structure, error)
        return matcher

    def _grammar(self, structure: Structure) -> str:
        make = self._library.LLMatcher
        try:
            if structure.kind == "json_schema":
                pattern = structure.whitespace_pattern
                text = grammar(json.loads(structure.text), _WHITESPACE if pattern is None else pattern)
                return str(make.grammar_from_lark(text))
            if structure.kind == "regex":
                return str(make.grammar_from_regex(structure.text))
            if structure.kind == "choice":
                choices = dict.fromkeys(json.loads(structure.text))
                written = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
                return str(make.grammar_from_lark(f"start: CHOICE\nCHOICE: {written}"))  # a terminal shares prefixes
            return str(self._library.grammar_from("grammar", structure.text))
        except (ValueError, RecursionError) as error:
            raise _refused(structure, reason(error)) from error

    def _build(self) -> None:
        """Import the library and build the vocabulary, once."""
        with self._building:
            if self._vocabulary is not None:
                return
            try:
                import llguidance
            except ImportError as error:
                raise MissingExtra("llguidance", "serve", "structured output") from error
            self._library = llguidance
            vocabulary = _Vocabulary(self._tokenizer, self._vocab_size)
            slices = [_WORDS, *llguidance.LLTokenizer.general_slices()]
            self._vocabulary = llguidance.LLTokenizer(cast(Any, vocabulary), slices=slices)
            vocabulary.greedy = self._vocabulary.greedy_tokenize


class _Vocabulary:
    """A vocabulary answers what llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        special_ids = [token_id for token_id in tokenizer.special_ids if token_id < vocab_size]
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)] + [b"<end>"]
        self.eos_token_id = vocab_size
        self.special_token_ids = [*special_ids, vocab_size]
        self.greedy: Callable[[str], list[int]] = lambda text: []
        self._encode, self._special_ids = tokenizer.encode, tokenizer.special_ids

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that a grammar leaves no choice about: as they stand in the midst of a text.

        Many tokenizers put a space before a text, or find special tokens in it. Then the longest tokens are taken.
        """
        for before in ("", _BEFORE):
            token_ids = self._encode(before + text, False)
            if before and token_ids:
                del token_ids[0]
            written = b"".join(self.tokens[token_id] for token_id in token_ids)
            if written == text.encode() and self._special_ids.isdisjoint(token_ids):
                return token_ids
        return self.greedy(text)


def _on_large_stack(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a thread of its own, where the library's recursion has much room."""
    result = Future[Any]()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            result.set_exception(error)

    thread = threading.Thread(target=run, name="whet-compile", daemon=True)
    with _STARTING:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return result.result()


def _json_options(structure: Structure) -> dict[str, Any]:
    pattern = structure.whitespace_pattern
    if pattern is None:
        pattern = _WHITESPACE
    return {"whitespace_pattern": pattern} if pattern else {"whitespace_flexible": False}


_NAMES = {
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "choice": "the list of choices",
    "grammar": "the grammar",
}


def _refused(structure: Structure, why: str) -> RequestError:
    message = f"{_NAMES[structure.kind]} cannot be enforced: {_short(why)}"
    return RequestError(message, param="structure", code="invalid_structure")


def _short(why: str) -> str:
    why = " ".join(why.removesuffix("<non-verbose/>").split())
    if _TOO_MANY.search(why):
        return (
            f"too many alternatives can go on at one place (the parser follows {_MOST_ITEMS} at most): shorten long "
            "lists of alternatives or optional properties, write a list as one regular expression or as choices, and "
            "give each text one way to be read"
        )
    if _TOO_MUCH.search(why):
        return (
            "its expressions need too much work: write shorter ones, with fewer optional parts and alternatives in a "
            "row, and fewer expressions for one text"
        )
    if why.startswith("NoExtension"):
        return "no token of the model's vocabulary can stand where it goes on"
    return why if len(why) <= _LONGEST_REASON else f"{why[:_LONGEST_REASON]} ..."
