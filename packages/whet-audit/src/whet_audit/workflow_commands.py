"""Write workflow commands, by which a program tells GitHub Actions what to show.

Source: GitHub's documentation, "Workflow commands for GitHub Actions".
"""

from collections.abc import Mapping


def workflow_command(level: str, properties: Mapping[str, object], message: str) -> str:
    """Return the command that shows a message.

    Args:
        level: "error", "warning" or "notice".
        properties: Where it is shown and under which title: file, line, endLine, col, endColumn, title.
    """
    named = ",".join(f"{name}={_escaped(str(value), is_property=True)}" for name, value in properties.items())
    return f"::{level} {named}::{_escaped(message)}"


def _escaped(text: str, *, is_property: bool = False) -> str:
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")]
    if is_property:
        pairs += [(":", "%3A"), (",", "%2C")]
    for plain, code in pairs:
        text = text.replace(plain, code)
    return text
