"""Find structures that nest, chain or branch so far that compiling them would overflow a stack or take seconds.

llguidance follows chains of rules, terminals and `$ref`s by recursion in native code, where an overflow ends the whole
process. It cannot be interrupted either, and its fuel does not bound all of its work. So what could be expensive is
counted before anything is compiled.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from whet.server.expression_size import MOST_PLAIN, why_expensive, why_too_plain
from whet.server.output_constraint import OutputConstraint
from whet.server.schema_size import nested, why_schema_expensive
from whet.server.schemas.keywords import REFERENCES

MOST_LINKS = 500  # rules of a grammar; references and levels of a schema
MOST_LEVELS = 200  # of brackets in a grammar
MOST_PARTS = 5_000  # texts, sets and names in one rule of a grammar
MOST_TERMINAL_PARTS = 1_000  # names and optional parts in one terminal of a Lark grammar
MOST_INTERSECTED = 10  # the signs `&` of a Lark grammar

_TEXTS = r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?://|#)[^\n]*'
_IN_LARK = re.compile(_TEXTS)
_IN_GBNF = re.compile(rf"\[(?:\\.|[^\]\\\n])*\]|{_TEXTS}")
_REFERENCE = re.compile(r'"(?:\$|\\u0024)(?:ref|dynamicRef|recursiveRef)"')
_INSERTED = re.compile(rf"%(json|regex)\b\s*|{_TEXTS}")  # JSON follows
_RULE = re.compile(r"([\w-]+)\s*(?:\[[^\]\n]*\]\s*)?:+=?")
_BRACKET = re.compile(r"[({\[)}\]]")
_TERMINAL = re.compile(r"_?[A-Z]")
_PLAIN = re.compile(r'"([0-9]*)"')  # what stands for a text, with its length
_PART = re.compile(r'"[0-9]*"|[\w-]+')
_NAME_OR_OPTIONAL = re.compile(r"[A-Za-z_][\w-]*|[?*]|\{0?,|\{0\}|\|(?=\s*(?:[|)]|$))")


def why_too_large(structure: OutputConstraint) -> str | None:
    """Return why a structure is not compiled, and what to do about it; None where it is."""
    if structure.kind == "json_schema":
        try:
            schema = json.loads(structure.text)
        except (ValueError, RecursionError):
            return None  # the library refuses it: it reads 128 levels at most
        return _why_schema(schema, structure.whitespace_pattern or "")
    if structure.kind == "regex":
        return why_expensive([structure.text])
    if structure.kind == "choice":
        return why_too_plain(max(len(choice.encode(errors="replace")) for choice in json.loads(structure.text)))
    return _why_grammar(structure.text)


def num_levels(value: Any) -> int:
    """Return how deep lists and objects nest in JSON. A number has 0 levels, and an empty list has 1."""
    return max((level for level, _ in nested(value)), default=0)


def _why_schema(schema: Any, whitespace: str = "") -> str | None:
    count = num_levels(schema)
    count += sum(len(one.keys() & REFERENCES) for _, one in nested(schema) if isinstance(one, dict))
    if count > MOST_LINKS:
        return f"it has {count} references ($ref) and levels, and {MOST_LINKS} is the most: write a smaller schema"
    return why_schema_expensive(schema, [whitespace])


def _why_grammar(text: str) -> str | None:
    num_references = len(_REFERENCE.findall(text))
    if num_references > MOST_LINKS:
        return f"its schemas have {num_references} references ($ref), and {MOST_LINKS} is the most: write smaller ones"
    try:
        text, schemas = _split(text)
    except ValueError as error:
        return str(error)
    for schema in schemas:
        if (why := _why_schema(schema)) is not None:
            return f"one of its schemas is too large: {why}"
    is_gbnf = "::=" in text
    pattern = _IN_GBNF if is_gbnf else _IN_LARK
    texts = pattern.findall(text)
    if not is_gbnf and (why := why_expensive(one[1:-1] for one in texts if re.match("/[^/]", one))) is not None:
        return why
    text = pattern.sub(_shortened, text)
    rules = list(_RULE.finditer(text))
    if not rules:
        return None  # the library refuses it
    if len(rules) > MOST_LINKS:
        return f"it has {len(rules)} rules, and {MOST_LINKS} is the most: join rules, or write a smaller grammar"
    level = deepest = 0
    for bracket in _BRACKET.findall(text):
        level += 1 if bracket in "({[" else -1
        deepest = max(deepest, level)
    if deepest > MOST_LEVELS:
        return f"its brackets nest {deepest} levels deep, and {MOST_LEVELS} is the most: give inner ones a rule"
    if text.count("&") > MOST_INTERSECTED:
        return f"it has {text.count('&')} signs &, and {MOST_INTERSECTED} is the most: join expressions"
    ends = [*(rule.start() for rule in rules[1:]), len(text)]
    whys = (_why_rule(rule[1], text[rule.end() : end], is_gbnf) for rule, end in zip(rules, ends, strict=True))
    return next((why for why in whys if why is not None), None)


def _why_rule(name: str, body: str, is_gbnf: bool) -> str | None:
    """Return why a rule is too large, given its body with shortened texts."""
    is_terminal = not is_gbnf and _TERMINAL.match(name) is not None
    texts = [_PLAIN.findall(run) for run in body.split("|")] if is_terminal else [[one] for one in _PLAIN.findall(body)]
    plain = max((sum(int(length or 0) for length in run) for run in texts), default=0)
    if plain > MOST_PLAIN:
        return f"in {name}, {why_too_plain(plain)}"
    if is_terminal:
        count = len(_NAME_OR_OPTIONAL.findall(body))
        if count > MOST_TERMINAL_PARTS:
            return (
                f"{name} has {count} names and optional parts, and {MOST_TERMINAL_PARTS} is the most: write a counted "
                f'repeat, such as ("a" | "b"){{0,1000}}'
            )
    elif (count := len(_PART.findall(body))) > MOST_PARTS:
        return (
            f"{name} has {count} parts, and {MOST_PARTS} is the most: give a list of choices as such, or write it as "
            f"one regular expression"
        )
    return None


def inserted_schemas(text: str) -> tuple[str, dict[str, Any]]:
    """Return a Lark grammar with a name in place of each %json and its schema, and the schemas by these names.

    Raises:
        ValueError: What follows %json is no JSON.
    """
    kept, schemas, at = list[str](), dict[str, Any](), 0
    for name, begin, end, inserted in _inserted(text):
        if name == "json":
            inner = f"whet_json_{len(schemas)}"
            schemas[inner] = inserted
            kept += [text[at:begin], f"@{inner}"]
            at = end
    return "".join([*kept, text[at:]]), schemas


def _split(text: str) -> tuple[str, list[Any]]:
    """Return a grammar without the JSON in it, and its schemas."""
    schemas, kept, at = list[Any](), list[str](), 0
    for name, begin, end, inserted in _inserted(text):
        kept.append(text[at : begin + len(name) + 1])
        at = end
        if name == "json":
            schemas.append(inserted)
    return "".join([*kept, text[at:]]), schemas


def _inserted(text: str) -> Iterator[tuple[str, int, int, Any]]:
    """Yield what stands before each JSON in a grammar (json or regex), where both begin and end, and the JSON.

    Raises:
        ValueError: What follows %json is no JSON.
    """
    decoder, at = json.JSONDecoder(), 0
    while (found := _INSERTED.search(text, at)) is not None:
        at = found.end()
        if found[1] is None:
            continue  # a text, an expression or a comment
        try:
            inserted, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            if found[1] == "json":
                raise ValueError(f"what follows %json at character {found.start()} is no JSON") from None
            continue  # the library refuses it
        yield found[1], found.start(), at, inserted


def _shortened(text: re.Match[str]) -> str:
    """Return what stands for a text, a set or an expression of a grammar: the length of a text, in quotes."""
    return f'"{len(text[0].encode(errors="replace")) - 2}"' if text[0].startswith('"') else '""'
