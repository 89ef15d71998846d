"""Say what is wrong with a command's arguments, in one form for typer and argparse.

This file imports the standard library alone, so that whet doctor works without any package.
"""

import argparse
import re
from collections.abc import Iterable
from typing import NoReturn

from whet.errors import OptionError

# what typer and argparse say -> what whet says; {0} is the option or the argument
_SAID = (
    (r"argument (\S+): ignored explicit argument ('.*')", "{0} takes no value; got {1}"),
    (r"unrecognized arguments: (-\S*).*", "there is no option {0}"),
    (r"unrecognized arguments: (.*)", "{0} is an argument too many"),
    (r"No such option: ([^\s]+).*", "there is no option {0}"),
    (r"Option '(.*)' requires an argument\.", "{0} takes a value, and none is given"),
    (r"Option '(.*)' does not take a value\.", "{0} takes no value"),
    (r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", "{0} is an argument too many"),
)


class Parser(argparse.ArgumentParser):
    """Parse the arguments of a command that starts without typer. What is wrong is raised as an OptionError."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(said(message, self.prog))


def said(message: str, program: str, possible: Iterable[str] = ()) -> str:
    """Return a parser's message in whet's words. `program` is as "whet doctor"; `possible` may have been meant."""
    flat = " ".join(message.split())
    text = flat
    for pattern, words in _SAID:
        if found := re.fullmatch(pattern, flat):
            text = words.format(*found.groups())
            break
    if near := " or ".join(sorted(possible)):
        text += f"; did you mean {near}?"
    if " takes " in text:
        return text
    return f"{text}{'' if text.endswith('?') else ';'} {program} --help lists what there is"


def takes(name: str, what: str, given: object) -> str:
    """Return the message for a value that an option does not take."""
    return f"{name} takes {what}; got {given!r}"
