"""Write structures as grammars of llguidance, and try them in a child process before the server compiles them.

llguidance compiles in native code by recursion. An overflow of its stack ends the process, and it cannot be
interrupted. So a structure that is new is first compiled by a child, which has a vocabulary of single bytes. Whatever
happens there is that structure's own error.
"""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

from whet.errors import RequestError, named_reason, reason
from whet.server.isolated_process import ChildEnded, IsolatedProcesses, answer_messages
from whet.server.output_constraint import OutputConstraint
from whet.server.schemas.writing import grammar as schema_grammar
from whet.server.structure_size import inserted_schemas, why_too_large

_MOST_FUEL = 2_000_000  # for the expressions of one structure: about 40 ms
_MOST_SYMBOLS = 200_000  # of one grammar
_MOST_ITEMS = 10_000  # of the parser for one mask: about 20 ms; every request of a step waits for each mask
_MOST_STEP_FUEL = 200_000  # for the expressions of one mask: about 4 ms
_STACK_BYTES = 512 * 2**20  # of the thread that compiles: only what is used of it takes memory
_MOST_CALLS = 50_000  # of Python within each other, on that stack: a schema is read by recursion
_STARTING = threading.Lock()  # the size of the stack is set for all threads that start
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"
_WORDS = "[a-z]+"  # a mask that allows all tokens of such a set is made from the set: half the time for many grammars
_TOO_MANY = re.compile("Too many items|Current row has [0-9]+ items")  # as the library says it
_TOO_MUCH = re.compile("lexer precomputation failed|fuel exhausted|Unable to determine if regex is empty")
_EXCERPT = re.compile(r"\s+[0-9]+ \| ")  # lines of a grammar, in an error about it
_LONGEST_REASON = 500  # characters of what the library says
_CPU_S = 10.0  # of a child for one structure; those at the limits of structure_size.py take about a second
_MORE_BYTES = 3 * 2**30  # of a child
_NUM_CHILDREN = 2  # structures that are tried at the same time
_MOST_TRIED = 64  # structures whose trial is remembered
_NAMES = {
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "choice": "the list of choices",
    "grammar": "the grammar",
}


def refused(structure: OutputConstraint, why: str) -> RequestError:
    if structure.kind == "json_schema":
        why = _of_schema_error(why)
    message = f"{_NAMES[structure.kind]} cannot be enforced: {short(why)}"
    return RequestError(message, param="structure", code="invalid_structure")


def _of_schema_error(why: str) -> str:
    """Return an error about a grammar that whet wrote for a schema, without the grammar."""
    if "Unsatisfiable schema" in why:
        return "no text matches its patterns, formats and lengths together"
    return _EXCERPT.split(why, maxsplit=1)[0].split("failed to compile JSON schema: ")[-1]


def short(why: str) -> str:
    """Return what the library says in few words, and what to do about the limits."""
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


def matcher(library: Any, vocabulary: Any, structure: OutputConstraint, written: str) -> Any:
    """Return the matcher of a grammar before its first token. `library` is llguidance, `vocabulary` its LLTokenizer.

    Raises:
        RequestError: The grammar does not compile.
    """
    limits = library.LLParserLimits(
        initial_lexer_fuel=_MOST_FUEL,
        step_lexer_fuel=_MOST_STEP_FUEL,
        step_max_items=_MOST_ITEMS,
        max_grammar_size=_MOST_SYMBOLS,
        verbose_errors=False,
    )
    made = library.LLMatcher(vocabulary, written, log_level=0, limits=limits)
    error = made.get_error()
    if not error:
        made.compute_bitmask()  # what can go wrong with the first token goes wrong here
        error = made.get_error()
    if error:
        raise refused(structure, error)
    return made


class Tokens:
    """Answer what llguidance asks of a tokenizer. One token after the others stands for the end."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special_ids: Iterable[int]) -> None:
        self.tokens = [*tokens, b"<end>"]
        self.eos_token_id = len(tokens)
        self.special_token_ids = [*special_ids, self.eos_token_id]
        self.greedy: Callable[[str], list[int]] = lambda text: []

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text, the longest that fit."""
        return self.greedy(text)


def vocabulary(library: Any, tokens: Tokens) -> Any:
    """Return llguidance's LLTokenizer of a vocabulary."""
    made = library.LLTokenizer(tokens, slices=[_WORDS, *library.LLTokenizer.general_slices()])
    tokens.greedy = made.greedy_tokenize
    return made


def written(library: Any, structure: OutputConstraint) -> str:
    """Return a structure as a grammar of llguidance.

    Raises:
        RequestError: It is none, is too large, or uses what cannot be enforced.
    """
    if (why := why_too_large(structure)) is not None:
        raise refused(structure, why)
    make = library.LLMatcher
    try:
        if structure.kind == "json_schema":
            pattern = structure.whitespace_pattern
            return str(make.grammar_from_lark(_of_schema(structure.text, _WHITESPACE if pattern is None else pattern)))
        if structure.kind == "regex":
            return str(make.grammar_from_regex(structure.text))
        if structure.kind == "choice":
            choices = dict.fromkeys(json.loads(structure.text))
            texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
            return str(make.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}"))  # a terminal shares prefixes
        text, schemas = inserted_schemas(structure.text)
        main = str(library.grammar_from("grammar", text))
        inner = [{"name": name, "lark_grammar": _inserted(schema)} for name, schema in schemas.items()]
        return json.dumps({"grammars": [{"lark_grammar": main}, *inner]}) if inner else main
    except (ValueError, RequestError, RecursionError) as error:
        raise refused(structure, reason(error)) from error


def _of_schema(text: str, whitespace: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {reason(error)}") from error
    return schema_grammar(schema, whitespace)


def _inserted(schema: Any) -> str:
    """Return the grammar of a schema after %json. Its x-guidance may say which whitespace JSON has."""
    options = schema.pop("x-guidance", {}) if isinstance(schema, dict) else {}
    pattern = options.get("whitespace_pattern") if isinstance(options, dict) else None
    if isinstance(options, dict) and options.get("whitespace_flexible") is False:
        pattern = ""
    return schema_grammar(schema, pattern if isinstance(pattern, str) else _WHITESPACE)


COMPILERS = IsolatedProcesses(__name__, _NUM_CHILDREN)


def tried(structure: OutputConstraint, described: Mapping[str, object]) -> str:
    """Return the grammar of a structure, once a child has compiled it. From any thread.

    `described` is the size of the vocabulary, and the texts of its special tokens by number.

    Raises:
        RequestError: It cannot be enforced, or does not compile.
    """
    found = _outcome(structure, json.dumps(described))
    if isinstance(found, RequestError):
        raise RequestError(str(found), param=found.param, code=found.code)
    return found


@lru_cache(maxsize=_MOST_TRIED)
def _outcome(structure: OutputConstraint, described: str) -> str | RequestError:
    asked = {"kind": structure.kind, "text": structure.text, "whitespace": structure.whitespace_pattern}
    try:
        answer = COMPILERS.ask(asked | json.loads(described))
    except ChildEnded as ended:
        limit = f"takes more than {_CPU_S:g} s" if ended.was_slow else "crashes the library that compiles it"
        return refused(structure, f"it {limit}: write a smaller or simpler one")
    if "error" in answer:
        return RequestError(answer["error"], param="structure", code="invalid_structure")
    return str(answer["grammar"])


def _single_bytes(size: int, special: Mapping[str, str]) -> Tokens:
    """Return what stands for a vocabulary: its special tokens, and single bytes in place of all others."""
    named = {int(number): bytes.fromhex(text) for number, text in special.items()}
    single = iter(range(256))
    tokens = [
        named[number] if number in named else bytes([byte]) if (byte := next(single, None)) is not None else b""
        for number in range(max(size, 256 + len(named)))
    ]
    return Tokens(tokens, named)


def on_large_stack(work: Callable[[], Any]) -> Any:
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


def _answer(library: Any, message: Mapping[str, Any]) -> dict[str, object]:
    """Return the grammar of a structure, or why it has none. It runs in the child."""
    structure = OutputConstraint(message["kind"], message["text"], message["whitespace"])
    sys.setrecursionlimit(_MOST_CALLS)

    def compiled() -> dict[str, object]:
        text = written(library, structure)
        tokens = _single_bytes(message["size"], message["special"])
        matcher(library, vocabulary(library, tokens), structure, text)
        return {"grammar": text}

    try:
        answer: dict[str, object] = on_large_stack(compiled)
    except RequestError as error:
        return {"error": str(error)}
    except BaseException as error:  # noqa: BLE001 - a panic of the library is a BaseException
        return {"error": str(refused(structure, f"the library fails on it ({named_reason(error)})"))}
    return answer


def main() -> None:
    """Try structures on standard input until it is closed."""
    import llguidance

    answer_messages(lambda message: _answer(llguidance, message), cpu_s=_CPU_S, more_bytes=_MORE_BYTES)


if __name__ == "__main__":
    main()
