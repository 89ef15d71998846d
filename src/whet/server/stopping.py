"""Build the text of an output as it grows, and end it before the first stop string."""

from whet.server.detokenizer import Detokenizer


class OutputText:
    """Build the text of one output. Text that could begin a stop string is held back until this is decided."""

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...] = ()) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._held = ""
        self.is_stopped = False

    def add(self, token_id: int, *, may_stop: bool = True) -> str:
        """Add a token, and return the text that may be shown now.

        After a stop string, `is_stopped` is set: add no more then. Without `may_stop`, none may end the output here.
        """
        new = self._detokenizer.add((token_id,))
        return self._shown(new, may_stop=may_stop) if self._stop and new else new

    def rest(self) -> str:
        """Return the text that is still held back. Call it after the last token."""
        if self.is_stopped:
            return ""
        tail = self._detokenizer.finish()
        shown = self._shown(tail, may_stop=True) if self._stop and tail else tail
        held, self._held = self._held, ""
        return shown + ("" if self.is_stopped else held)

    def _shown(self, new: str, *, may_stop: bool) -> str:
        text = self._held + new
        if may_stop:
            found = [place for place in (text.find(stop) for stop in self._stop) if place >= 0]
            if found:
                self.is_stopped, self._held = True, ""
                return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of the text that is a prefix of the stop string, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
