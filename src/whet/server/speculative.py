"""Speculation: tokens are guessed cheaply, and the model verifies several in one step instead of making one.

Drafts are just more tokens of a step. What the output is does not change: a greedy request, or one whose drafts were
looked up, keeps the drafts that are the tokens it would have chosen anyway, by the same random numbers (for a draft
that was not drawn, this is what rejection sampling comes to). Where drafts were drawn from a smaller model, rejection
sampling keeps the distribution.
"""

from collections.abc import Sequence

from torch import Tensor

from whet.server import randomness
from whet.server.drafters import Drafter
from whet.server.payoff import Payoff
from whet.server.rejection import verify
from whet.server.request import Request
from whet.server.sampler import UNUSABLE, Row, probabilities, uniforms


class Speculation:
    """Proposes drafts for running requests, as long as that pays. payoff None: always."""

    def __init__(self, drafter: Drafter, num_draft_tokens: int, payoff: Payoff | None = None) -> None:
        self.payoff = payoff
        self.num_drafted = 0
        self.num_accepted = 0
        self.drafter = drafter
        self._num_draft_tokens = num_draft_tokens
        self._is_steady = True

    def propose(self, running: Sequence[Request]) -> None:
        """Give drafts to the requests whose next step makes a new token. Never more than they may still have."""
        ready = [request for request in running if request.num_computed == len(request.token_ids) - 1]
        if not ready or (self.payoff is not None and not self.payoff.wants_drafts(len(ready))):
            return
        limits = [request.max_len - len(request.token_ids) - 1 for request in ready]
        wanted = [(r, min(limit, self._num_draft_tokens)) for r, limit in zip(ready, limits, strict=True) if limit > 0]
        if wanted:
            self._is_steady = self.drafter.propose([r for r, _ in wanted], [count for _, count in wanted])

    def count(self, num_drafts: int, num_accepted: int) -> None:
        """A request's drafts have been verified."""
        self.num_drafted += num_drafts
        self.num_accepted += num_accepted

    def observe(self, num_seqs: int, had_drafts: bool, num_tokens: int, seconds: float) -> None:
        """A step that only continued outputs: its new tokens, its time with that of drafting."""
        if self.payoff is not None and self._is_steady:
            self.payoff.observe(num_seqs, had_drafts, num_tokens, seconds)
        self._is_steady = True


def accepted(request: Request, logits_RV: Tensor, ids: list[int]) -> list[int]:
    """The new tokens of a request, at least one: its drafts as far as they are accepted, then one of the model's own.

    logits_RV: after its last token and after each draft, R = drafts + 1. ids: what `sample` chose there. A row whose
    logits cannot be used ends the list with UNUSABLE.
    """
    drafts = request.drafts
    if request.draft_probs is None or UNUSABLE in ids:
        for place, draft in enumerate(drafts):
            if ids[place] != draft:
                return ids[: place + 1]
        return ids
    rows = [Row(request, place) for place in range(len(drafts))]
    accept = uniforms(rows, randomness.ACCEPT).tolist()
    residual = uniforms(rows, randomness.RESIDUAL).tolist()
    tokens = verify(probabilities(logits_RV[:-1], rows), request.draft_probs, drafts, accept, residual)
    return [*tokens, ids[-1]] if tokens == drafts else tokens
