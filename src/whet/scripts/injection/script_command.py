"""Check a command that starts a training script. Nothing heavy is imported."""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.errors import TargetError
from whet.scripts.injection.launchers import check_reach, check_started_once, launcher_length
from whet.scripts.injection.launching import MODULE_OPTIONS, name_of, runs_python, script_index

_ISOLATED = re.compile("-[A-Za-z]*[IES][A-Za-z]*")  # options of Python
_HOW = "write it as: python train.py ARGUMENTS, or as: torchrun OPTIONS train.py ARGUMENTS"


@dataclass(frozen=True)
class ScriptCommand:
    """Describe a command that trains, by Python or by a launcher of several Pythons, and its working directory.

    `script` is the place of the script, or of the module after -m, among the words.
    """

    words: tuple[str, ...]
    script: int
    directory: Path

    @classmethod
    def checked(cls, words: Sequence[str]) -> "ScriptCommand":
        """Return a command that can be run.

        Raises:
            TargetError: It is no command of Python, of torchrun or of accelerate launch, or its script does not exist.
            RanksError: This process is one of several that a launcher started.
        """
        check_started_once()
        program, place = words[0] if words else "", script_index(words)
        check_reach(words[:place])
        if not runs_python(program) and not launcher_length(words):
            raise TargetError(f"{program or 'nothing'} is not a Python command; {_HOW}")
        if shutil.which(program) is None:
            raise TargetError(f"{program} is not found; {_HOW}")
        if place is None or words[place].startswith("-"):
            raise TargetError(f"{' '.join(words)!r} names no script that ends in .py, and no module after -m; {_HOW}")
        if isolated := next((word for word in words[1:place] if _ISOLATED.fullmatch(word)), None):
            raise TargetError(
                f"a Python with {isolated} ignores what whet adds to it from outside; leave {isolated} out"
            )
        if words[place - 1] not in MODULE_OPTIONS and not Path(words[place]).is_file():
            raise TargetError(f"there is no script {words[place]}; name a Python file that exists")
        return cls(tuple(words), place, Path.cwd().resolve())

    @property
    def is_launched(self) -> bool:
        """Return whether a launcher starts the script, perhaps in several processes."""
        return launcher_length(self.words) > 0

    @property
    def name(self) -> str:
        return name_of(self.words)

    def in_copy(self, copy: Path) -> list[str]:
        """Return the words with every path of the working directory replaced by the copy's."""
        here = str(self.directory)
        return [self.words[0], *(word.replace(f"{here}{os.sep}", f"{copy}{os.sep}") for word in self.words[1:])]
