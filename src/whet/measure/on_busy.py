"""Name what a command does on a busy machine. Nothing is measured here, so that the command line starts at once."""

from enum import StrEnum

from whet.errors import OptionError

WAIT_S = 120.0  # for quiet, over a whole command


class OnBusy(StrEnum):
    WAIT = "wait"  # for quiet, up to a stated time; then no verdict
    INCONCLUSIVE = "inconclusive"  # do not wait; no verdict
    GO_ON = "go-on"  # measure as it is; the verdict says so

    @classmethod
    def checked(cls, text: str) -> "OnBusy":
        """Return the choice that an option names, or raise OptionError where there is no such choice."""
        try:
            return cls(text)
        except ValueError as error:
            raise OptionError(f"--on-busy takes {', '.join(cls)}; got {text!r}") from error
