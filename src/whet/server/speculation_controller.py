"""Decide whether to speculate, from the tokens per second with and without drafts, for each number of sequences.

The cost of verification grows with the number of sequences in a step, and how many drafts are accepted depends on the
text. So both ways are measured while the engine runs: first steps without drafts, then steps with them. The faster way
is then used, and the other one is tried again from time to time.
"""

from dataclasses import dataclass
from enum import Enum

_MEMORY = 0.9  # the weight that earlier steps keep when a new one is added
_HOPELESS = 0.9  # a gain below this ends a trial after its first steps
_LONGEST_PAUSE = 4096  # steps


class _Phase(Enum):
    """Name the phases, with their length in steps. A phase with drafts counts only the steps that had drafts."""

    FIRST = 6  # without drafts, for comparison
    LOOK = 4  # with drafts: the begin of a trial, which ends here if they are much slower
    TRIAL = 12  # with drafts: the rest of the trial
    ON = 256  # with drafts, since they are faster
    REFRESH = 5  # without drafts, since their speed may have changed
    PAUSE = 64  # without drafts, since drafts were slower; each pause is twice as long as the last


_DRAFTING = {_Phase.LOOK, _Phase.TRIAL, _Phase.ON}


@dataclass
class _Rate:
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens = _MEMORY * self.tokens + tokens
        self.seconds = _MEMORY * self.seconds + seconds

    @property
    def per_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds else None


class _Group:
    """Hold the measurements and the phase for one range of numbers of sequences."""

    def __init__(self, phase: _Phase) -> None:
        self._with_drafts, self._without = _Rate(), _Rate()
        self._pause = _Phase.PAUSE.value
        self._left = 0
        self.phase = phase
        self._begin(phase)

    @property
    def gain(self) -> float | None:
        on, off = self._with_drafts.per_s, self._without.per_s
        return on / off if on and off else None

    def observe(self, had_drafts: bool, tokens: int, seconds: float) -> None:
        (self._with_drafts if had_drafts else self._without).add(tokens, seconds)
        if had_drafts is (self.phase in _DRAFTING):  # a step for which no drafts were found tells nothing
            self._left -= 1
        if self._left <= 0:
            self._begin(self._next())

    def _next(self) -> _Phase:
        gain = self.gain if self.gain is not None else 1.0
        if self.phase is _Phase.LOOK:
            return _Phase.TRIAL if gain > _HOPELESS else _Phase.PAUSE
        if self.phase is _Phase.TRIAL:
            return _Phase.ON if gain > 1 else _Phase.PAUSE
        if self.phase is _Phase.ON:
            return _Phase.REFRESH
        return _Phase.ON if self.phase is _Phase.REFRESH and gain > 1 else _Phase.LOOK

    def _begin(self, phase: _Phase) -> None:
        self.phase, self._left = phase, phase.value
        if phase is _Phase.PAUSE:
            self._left, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        elif phase is _Phase.ON:
            self._pause = _Phase.PAUSE.value


class SpeculationController:
    """Decide for each step whether to draft. `observe` gets the time of each step that only continues outputs."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._latest: _Group | None = None

    @property
    def is_on(self) -> bool:
        """Return whether drafts are made now, or are only interrupted to measure steps without them."""
        return self._latest is not None and self._latest.phase in (*_DRAFTING, _Phase.REFRESH)

    @property
    def gain(self) -> float | None:
        """Return tokens per second with drafts over those without, for so many sequences as now; None until known."""
        return self._latest.gain if self._latest else None

    def wants_drafts(self, num_seqs: int) -> bool:
        self._latest = self._group(num_seqs)
        return self._latest.phase in _DRAFTING

    def observe(self, num_seqs: int, had_drafts: bool, num_tokens: int, seconds: float) -> None:
        self._group(num_seqs).observe(had_drafts, num_tokens, seconds)

    def _group(self, num_seqs: int) -> _Group:
        size = num_seqs.bit_length()
        if size not in self._groups:
            # The more sequences, the lower the gain. If drafts are paused for fewer sequences, begin with a pause.
            fewer = [group for other, group in self._groups.items() if other < size]
            phase = _Phase.PAUSE if any(group.phase is _Phase.PAUSE for group in fewer) else _Phase.FIRST
            self._groups[size] = _Group(phase)
        return self._groups[size]
