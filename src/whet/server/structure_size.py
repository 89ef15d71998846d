"""Find structures that nest or chain so far that compiling them could overflow the stack of a thread.

llguidance follows chains of rules, terminals and `$ref`s by recursion in native code, where an overflow ends the whole
process. So what could be a long chain is counted before anything is compiled.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from whet.server.structure import Structure

MOST_LINKS = 500  # rules of a grammar; references and levels of a schema
MOST_LEVELS = 200  # of brackets in a grammar

_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_TEXTS = r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?://|#)[^\n]*'
_IN_LARK = re.compile(_TEXTS)
_IN_GBNF = re.compile(rf"\[(?:\\.|[^\]\\\n])*\]|{_TEXTS}")
_REFERENCE = re.compile(r'"(?:\$|\\u0024)(?:ref|dynamicRef|recursiveRef)"')
_RULE = re.compile(r"[\w-]+\s*(?:\[[^\]\n]*\]\s*)?:+=?")
_BRACKET = re.compile(r"[({\[)}\]]")


def why_too_large(structure: Structure) -> str | None:
    """Return why a structure is not compiled, and what to do about it; None where it is."""
    if structure.kind == "json_schema":
        return _why_schema(structure.text)
    return _why_grammar(structure.text) if structure.kind == "grammar" else None


def num_levels(value: Any) -> int:
    """Return how deep lists and objects nest in JSON. A number has 0 levels, and an empty list has 1."""
    return max((level for level, _ in _nested(value)), default=0)


def _why_schema(text: str) -> str | None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return None  # the library refuses it: it reads 128 levels at most
    count = num_levels(schema)
    count += sum(len(_REFERENCES & one.keys()) for _, one in _nested(schema) if isinstance(one, dict))
    if count <= MOST_LINKS:
        return None
    return f"it has {count} references ($ref) and levels, and {MOST_LINKS} is the most: write a smaller schema"


def _why_grammar(text: str) -> str | None:
    num_references = len(_REFERENCE.findall(text))
    if num_references > MOST_LINKS:
        return f"its schemas have {num_references} references ($ref), and {MOST_LINKS} is the most: write smaller ones"
    text = (_IN_GBNF if "::=" in text else _IN_LARK).sub('""', text)
    num_rules = len(_RULE.findall(text))
    if num_rules > MOST_LINKS:
        return f"it has {num_rules} rules, and {MOST_LINKS} is the most: join rules, or write a smaller grammar"
    level = deepest = 0
    for bracket in _BRACKET.findall(text):
        level += 1 if bracket in "({[" else -1
        deepest = max(deepest, level)
    if deepest > MOST_LEVELS:
        return f"its brackets nest {deepest} levels deep, and {MOST_LEVELS} is the most: give inner ones a rule"
    return None


def _nested(value: Any) -> Iterator[tuple[int, Any]]:
    """Yield each list and object of a JSON value with its level, from 1 on, without recursion."""
    level, inner = 1, [value]
    while inner := [one for one in inner if isinstance(one, (dict, list))]:
        for one in inner:
            yield level, one
        inner = [item for one in inner for item in (one.values() if isinstance(one, dict) else one)]
        level += 1
