"""Handle a busy machine in the commands that measure: their options, and the line that they show."""

from typing import TYPE_CHECKING, Annotated

import typer

from whet.measure.on_busy import OnBusy
from whet.ui.units import seconds

if TYPE_CHECKING:
    from rich.console import Console

    from whet.measure.quiet import QuietWait

INCONCLUSIVE = 3  # exit code: the machine was too busy to tell

OnBusyOption = Annotated[
    str,
    typer.Option(
        "--on-busy",
        metavar="HOW",
        help="on a busy machine: wait (for quiet), inconclusive (give no verdict) or go-on (measure anyway)",
    ),
]
BusyWaitOption = Annotated[
    str, typer.Option("--busy-wait", metavar="TIME", help="how long to wait for a quiet machine in all, as 2m")
]


def busy_wait_s(text: str) -> float:
    """Return the seconds that --busy-wait asks for; with 0 nothing is waited for.

    Raises:
        OptionError: The text is no duration.
    """
    return seconds("--busy-wait", text, may_be_zero=True)


def patience_of(on_busy: str, busy_wait: str, console: "Console") -> "QuietWait":
    """Return the QuietWait that two options ask for. It shows one line whenever the command waits for quiet.

    Raises:
        OptionError: An option has no such value.
    """
    from whet.measure.quiet import QuietWait

    return QuietWait(OnBusy.checked(on_busy), busy_wait_s(busy_wait), report=lambda text: show_waiting(console, text))


def show_waiting(console: "Console", text: str) -> None:
    """Show what a QuietWait reports."""
    from rich.text import Text

    if text:
        console.print(Text(text, style="yellow"))
