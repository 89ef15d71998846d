"""Whether speculation pays, by tokens a second with it and without, for each number of sequences that run together.

Verifying costs more the more sequences share the step, and what is accepted depends on the text, so this is measured
while it runs: some steps without drafts, some with; then whichever is faster, and now and then the other one again.
"""

from dataclasses import dataclass
from enum import Enum

_MEMORY = 0.9  # the weight that earlier steps keep when a new one is added
_HOPELESS = 0.9  # a gain below this ends a trial after its first steps
_LONGEST_PAUSE = 4096  # steps


class _Phase(Enum):
    """What is done, and for how many steps; those with drafts count where there were any."""

    FIRST = 6  # without drafts, to have something to compare with
    LOOK = 4  # with drafts: a first impression
    TRIAL = 12  # with drafts: the rest of the trial
    ON = 256  # with drafts, as they pay
    REFRESH = 5  # without drafts, as what they are compared with may have changed
    PAUSE = 64  # without drafts, as they did not pay; twice as long each time


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
    """What is known of one range of sequences at once."""

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
        if had_drafts is (self.phase in _DRAFTING):  # finding nothing to propose neither pays nor costs
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
    """Says for each step whether to draft. Told the time of each step that only continues outputs."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._latest: _Group | None = None

    @property
    def is_on(self) -> bool:
        """Whether drafts are made now, or would be but for a look at steps without."""
        return self._latest is not None and self._latest.phase in (*_DRAFTING, _Phase.REFRESH)

    @property
    def gain(self) -> float | None:
        """Tokens a second with drafts over those without, at the present number of sequences; None until measured."""
        return self._latest.gain if self._latest else None

    def wants_drafts(self, num_seqs: int) -> bool:
        """Whether the next step of so many sequences shall have drafts."""
        self._latest = self._group(num_seqs)
        return self._latest.phase in _DRAFTING

    def observe(self, num_seqs: int, had_drafts: bool, num_tokens: int, seconds: float) -> None:
        """A step of so many sequences gave `num_tokens` new tokens."""
        self._group(num_seqs).observe(had_drafts, num_tokens, seconds)

    def _group(self, num_seqs: int) -> _Group:
        size = num_seqs.bit_length()
        if size not in self._groups:
            # The more run together, the less it pays: where it does not for fewer, it need not be tried at once.
            fewer = [group for other, group in self._groups.items() if other < size]
            phase = _Phase.PAUSE if any(group.phase is _Phase.PAUSE for group in fewer) else _Phase.FIRST
            self._groups[size] = _Group(phase)
        return self._groups[size]
