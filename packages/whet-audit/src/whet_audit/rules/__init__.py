"""Every rule, by its code. One rule is one file in this folder, and in no other list.

A rule's file has its card as docstring, CODE, NAME, PRIORITY and `check(context)`. PREVIEW = True turns it off unless
it is asked for: a rule that was right and worth doing less than four times in five, on code that it was not written on.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Protocol, cast

from whet_audit.finding import Hit, Priority
from whet_audit.rule_context import RuleContext


class Rule(Protocol):
    """What the module of a rule has.

    Attributes:
        CODE: Three letters for the topic and three digits.
        NAME: What is wrong, as a name with hyphens.
        PRIORITY: How much it is usually worth to mend.
    """

    CODE: str
    NAME: str
    PRIORITY: Priority
    __doc__: str | None

    @staticmethod
    def check(context: RuleContext) -> Iterator[Hit]:
        """Yield a hit for each place in a module where the rule fires."""


_TOPICS = ("SYN", "MOV", "DAT", "PRE", "CMP", "MEM", "INF", "DST")  # in the order in which people read them


def _place(rule: Rule) -> tuple[int, str]:
    """Return where a rule stands in the list; a topic that has no place comes last."""
    topic = rule.CODE[:3]
    return (_TOPICS.index(topic) if topic in _TOPICS else len(_TOPICS), rule.CODE)


def _found() -> dict[str, Rule]:
    """Import every file of this folder, and return the rules by topic and code."""
    rules = [cast(Rule, import_module(f"{__name__}.{entry.name}")) for entry in pkgutil.iter_modules(__path__)]
    return {rule.CODE: rule for rule in sorted(rules, key=_place)}


def is_preview(rule: Rule) -> bool:
    """Return whether a rule is off unless it is asked for, by --preview or by its full code."""
    return getattr(rule, "PREVIEW", False)


RULES: dict[str, Rule] = _found()
