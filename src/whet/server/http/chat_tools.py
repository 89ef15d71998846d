"""Take an answer with calls of tools apart: into its message, or the deltas of a stream."""

from dataclasses import dataclass, field
from typing import Any

from whet.server.completion import Delta
from whet.server.http.tools import ToolUse
from whet.server.tool_parser import Arguments, CallBegins, Content


@dataclass
class Parts:
    """One choice of an answer, taken apart as its text comes."""

    use: ToolUse
    calls: list[dict[str, Any]] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._parser = self.use.parser()

    def add(self, delta: Delta) -> list[dict[str, Any]]:
        """Return the deltas of a stream that a piece of text gives: content, a call's id and name, its arguments."""
        events = self._parser.add(delta.text)
        if delta.finish_reason is not None:
            events += self._parser.finish()
        deltas: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, Content):
                self._text.append(event.text)
                deltas.append({"content": event.text})
            elif isinstance(event, CallBegins):
                function = {"name": event.name, "arguments": ""}
                self.calls.append({"id": self.use.form.new_id(), "type": "function", "function": function})
                deltas.append({"tool_calls": [{"index": event.index, **self.calls[-1], "function": dict(function)}]})
            else:
                deltas.append(self._argue(event))
        return deltas

    @property
    def message(self) -> dict[str, Any]:
        """Return the message of a whole answer, less its role."""
        text = "".join(self._text)
        if not self.calls:
            return {"content": text, "refusal": None}
        return {"content": text or None, "refusal": None, "tool_calls": self.calls}

    def finish_reason(self, reason: str | None) -> str | None:
        """Return why the choice ended in OpenAI's words, given it in the engine's; None while it goes on."""
        return "tool_calls" if reason == "stop" and self.calls else reason

    def _argue(self, event: Arguments) -> dict[str, Any]:
        self.calls[event.index]["function"]["arguments"] += event.text
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
