"""Speculation: tokens are guessed cheaply, and the model verifies several in one step instead of making one.

Drafts are just more tokens of a step. A draft is kept where it equals the token that the model itself chooses there, by
the random number that belongs to that place of the output. So a request has the same output with drafts and without
them, and the distribution is the model's own. A drafting model draws by the same random numbers: the more alike the two
models are, the more often they choose the same token. Rejection sampling would accept more of its drafts, but then the
output of a seeded request would depend on whether drafts were made, which depends on measured times.
Source: Daliri, Musco and Suresh, 2025, arXiv:2408.07978 (drafter-invariant speculative decoding by coupled draws).
"""

from collections.abc import Sequence

from whet.server.drafters import Drafter
from whet.server.request import Request
from whet.server.speculation_controller import SpeculationController


class Speculation:
    """Proposes drafts for running requests, as long as that pays. controller None: always."""

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
        """Give drafts to the requests whose next step makes a new token. Never more than they may still have."""
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
        """A request's drafts have been verified."""
        self.num_drafted += num_drafts
        self.num_accepted += num_accepted

    def observe(self, num_seqs: int, had_drafts: bool, num_tokens: int, seconds: float) -> None:
        """A step that only continued outputs: its new tokens, its time with that of drafting."""
        if self.controller is not None and self._is_steady:
            self.controller.observe(num_seqs, had_drafts, num_tokens, seconds)
        self._is_steady = True


def accepted(request: Request, ids: list[int]) -> list[int]:
    """Return the new tokens of a request: its drafts as far as the model chose them too, then one of the model's own.

    Args:
        request: The request, with its drafts.
        ids: The tokens that the sampler chose after the request's last token and after each draft: one more than there
            are drafts. UNUSABLE stands where the logits could not be used; it equals no draft, so it ends the list.

    Returns:
        At least one token.
    """
    for place, draft in enumerate(request.drafts):
        if ids[place] != draft:
            return ids[: place + 1]
    return ids
