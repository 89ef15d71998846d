"""Speculate: propose tokens cheaply, and let the model verify several in one step instead of generating one.

Drafts are additional tokens of a step. A draft is accepted if it equals the token that the model itself chooses there,
with the random number that belongs to that place of the output. So a request has the same output with and without
drafts, and the distribution is the model's own. A drafting model uses the same random numbers: the more similar the two
models are, the more often they choose the same token. Rejection sampling would accept more of its drafts. But then the
output of a seeded request would depend on whether drafts were made, which depends on measured times.

Source: Daliri, Musco and Suresh, 2025, arXiv:2408.07978 (drafter-invariant speculative decoding by coupled draws).
"""

from collections.abc import Sequence

from whet.server.drafters import Drafter
from whet.server.request import Request
from whet.server.speculation_controller import SpeculationController


class Speculation:
    """Propose at most `num_draft_tokens` for each running request; with a controller, only while that is faster."""

    def __init__(
        self, drafter: Drafter, num_draft_tokens: int, controller: SpeculationController | None = None
    ) -> None:
        self.controller = controller
        self.num_drafted = 0
        self.num_accepted = 0
        self.drafter = drafter
        self._num_draft_tokens = num_draft_tokens
        self._is_steady = True

    def propose(self, running: Sequence[Request]) -> None:
        """Give drafts to the requests whose next step gives a new token, within the tokens that they may still have."""
        ready = [request for request in running if request.num_computed == len(request.token_ids) - 1]
        if not ready or (self.controller is not None and not self.controller.wants_drafts(len(ready))):
            return
        limits = [request.max_len - len(request.token_ids) - 1 for request in ready]
        wanted = [(r, min(limit, self._num_draft_tokens)) for r, limit in zip(ready, limits, strict=True) if limit > 0]
        if wanted:
            self._is_steady = self.drafter.propose([r for r, _ in wanted], [count for _, count in wanted])
        for request in ready:
            if request.drafts and request.guide is not None:
                del request.drafts[request.guide.num_valid(request.drafts) :]

    def count(self, num_drafts: int, num_accepted: int) -> None:
        self.num_drafted += num_drafts
        self.num_accepted += num_accepted

    def observe(self, num_seqs: int, had_drafts: bool, num_tokens: int, seconds: float) -> None:
        """Report a step that only continued outputs. `seconds` includes the time of drafting."""
        if self.controller is not None and self._is_steady:
            self.controller.observe(num_seqs, had_drafts, num_tokens, seconds)
        self._is_steady = True


def accepted(request: Request, ids: list[int]) -> list[int]:
    """Return the drafts of a request up to the first that the model did not choose, and the model's next token.

    That is at least one token. `ids` are the tokens that the sampler chose after the request's last token and after
    each draft: one more than there are drafts. UNUSABLE, for unusable logits, equals no draft, so it ends the list.
    """
    for place, draft in enumerate(request.drafts):
        if ids[place] != draft:
            return ids[: place + 1]
    return ids
