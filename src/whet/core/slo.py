"""Define a service-level objective: the limits that an answer must meet to count."""

import re
from dataclasses import dataclass
from typing import Self

from whet.errors import OptionError

_UNITS_S = {"s": 1.0, "ms": 1e-3}
_LIMIT = re.compile(r"\s*([a-z0-9]+)\s*=\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s)\s*")


@dataclass(frozen=True, slots=True)
class Slo:
    """Hold the most that an answer may take; None for no limit. `tpot_s` is a mean over the tokens after the first."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read limits such as "ttft=500ms,e2e=10s"; raise OptionError for another form, or where one is named twice."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            found = _LIMIT.fullmatch(part.lower())
            if found is None or found[1] not in ("ttft", "tpot", "e2e") or float(found[2]) <= 0:
                raise OptionError(f"--slo {text!r}: write limits as ttft=500ms,tpot=50ms,e2e=10s, one or more of them")
            if f"{found[1]}_s" in limits:
                raise OptionError(f"--slo {text!r} names {found[1]} twice; give it once")
            limits[f"{found[1]}_s"] = float(found[2]) * _UNITS_S[found[3]]
        return cls(**limits)

    def is_met(self, *, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None) -> bool:
        """Return whether times lie within every limit. An answer of one token has no TPOT and meets its limit."""
        pairs = ((ttft_s, self.ttft_s), (tpot_s, self.tpot_s), (e2e_s, self.e2e_s))
        return all(time is None or limit is None or time <= limit for time, limit in pairs)
