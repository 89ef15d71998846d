"""What `whet serve` refuses before the port opens."""

import pytest

from whet.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that `whet serve` ends with, exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(["serve", "--port", "0", *arguments])
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    [line] = said.err.strip().splitlines()
    assert line.startswith("error: ")
    return line
