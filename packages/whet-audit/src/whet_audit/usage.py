"""Parse the command line, and say what is wrong with it in one line."""

import argparse
import re
from typing import NoReturn

from whet_audit.errors import UsageError

# what argparse says -> what whet-audit says, in the words that whet's other commands use; the first is for options that
# whet audit adds
_SAID = (
    (r"argument (\S+): invalid int value: ('.*')", "{0} takes a whole number; got {1}"),
    (r"argument (\S+): invalid choice: ('.*') \(choose from (.*)\)", "{0} takes one of {2}; got {1}"),
    (r"argument (\S+): expected one argument", "{0} takes a value, and none is given"),
    (r"argument (\S+): ignored explicit argument ('.*')", "{0} takes no value; got {1}"),
    (r"unrecognized arguments: (-\S*).*", "there is no option {0}"),
    (r"unrecognized arguments: (.*)", "{0} is an argument too many"),
)


class Parser(argparse.ArgumentParser):
    """Parse arguments. What is wrong is raised as a UsageError."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError in whet-audit's words."""
        text = " ".join(message.split())
        for pattern, words in _SAID:
            if found := re.fullmatch(pattern, text):
                text = words.format(*found.groups())
                break
        raise UsageError(text if " takes " in text else f"{text}; {self.prog} --help lists what there is")
