"""The text of an output as it grows, which ends before the first stop string."""

from whet.server.detokenizer import Detokenizer


class OutputText:
    """The text of one output. What could become a stop string is held back until it has, or cannot any more."""

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...] = ()) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._held = ""
        self.is_stopped = False

    def add(self, token_id: int, *, may_stop: bool = True) -> str:
        """One more token; the text that may be shown. After a stop string `is_stopped` is set, and no more comes."""
        new = self._detokenizer.add((token_id,))
        if not self._stop:
            return new
        if not new:
            return ""
        return self._shown(new, may_stop=may_stop)

    def rest(self) -> str:
        """What is still held back, at the end."""
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
    """The length of the longest end of the text that begins the stop string, without being it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
