"""Whether speculation pays, by tokens a second with it and without, for each number of sequences that run together.

Verifying costs more the more sequences share the step, and what is accepted depends on the text, so this is measured
while it runs: some steps without drafts, some with; then whichever is faster, and now and then the other one again.
"""

from dataclasses import dataclass

_FIRST_WITHOUT = 6  # steps at the start, to have something to compare with
_TRIAL = 16  # steps with drafts before they are judged
_REFRESH_EVERY, _REFRESH = 256, 4  # steps with drafts, and after so many some without
_FIRST_PAUSE, _LONGEST_PAUSE = 64, 4096  # steps without drafts after they did not pay; doubled each time
_MEMORY = 0.9  # the weight that earlier steps keep when a new one is added


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

    def __init__(self) -> None:
        self.with_drafts, self.without = _Rate(), _Rate()
        self.is_on = False
        self.left = _FIRST_WITHOUT  # steps of this phase
        self.pause = _FIRST_PAUSE
        self.is_refreshing = False

    @property
    def gain(self) -> float | None:
        on, off = self.with_drafts.per_s, self.without.per_s
        return on / off if on and off else None

    def observe(self, had_drafts: bool, tokens: int, seconds: float) -> None:
        (self.with_drafts if had_drafts else self.without).add(tokens, seconds)
        if self.is_on and not had_drafts:
            return  # nothing was found to propose: it neither paid nor cost
        self.left -= 1
        if self.left <= 0:
            self._next_phase()

    def _next_phase(self) -> None:
        pays = self.gain is None or self.gain > 1
        if not self.is_on:
            self.is_on, self.left = True, (_REFRESH_EVERY if self.is_refreshing and pays else _TRIAL)
            self.is_refreshing = False
        elif not pays:
            self.is_on, self.left = False, self.pause
            self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        else:
            self.is_on, self.left, self.is_refreshing = False, _REFRESH, True
            self.pause = _FIRST_PAUSE


class Payoff:
    """Says for each step whether to draft. Told the time of each step that only continues outputs."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._latest: _Group | None = None

    @property
    def is_on(self) -> bool:
        """Whether drafts are made now; also while they are only tried."""
        return self._latest is not None and (self._latest.is_on or self._latest.is_refreshing)

    @property
    def gain(self) -> float | None:
        """Tokens a second with drafts over those without, at the present number of sequences; None until measured."""
        return self._latest.gain if self._latest else None

    def wants_drafts(self, num_seqs: int) -> bool:
        """Whether the next step of so many sequences shall have drafts."""
        self._latest = self._group(num_seqs)
        return self._latest.is_on

    def observe(self, num_seqs: int, had_drafts: bool, num_tokens: int, seconds: float) -> None:
        """A step of so many sequences gave `num_tokens` new tokens."""
        self._group(num_seqs).observe(had_drafts, num_tokens, seconds)

    def _group(self, num_seqs: int) -> _Group:
        return self._groups.setdefault(num_seqs.bit_length(), _Group())
