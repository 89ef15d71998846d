"""Who guesses the next tokens: earlier text of the same sequence, or a smaller model.

Source of the first: prompt lookup (Saxena, 2023), which is n-gram matching within the sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from whet.models.step import ServedModel
from whet.server.blocks import Blocks
from whet.server.request import Request
from whet.server.runner import Runner
from whet.server.sampler import UNUSABLE, Row, sample
from whet.server.sampling_params import SamplingParams
from whet.server.scheduler import Plan

_LONGEST, _SHORTEST = 3, 2  # tokens that must have stood in a row before
_BYTES = 4


class Drafter(Protocol):
    """Fills in the requests' `drafts`."""

    def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
        """Up to `num_drafts[i]` drafts for each request, which stands right before its next token.

        Returns False where it had other work to do too, so that the time says nothing.
        """


class NgramDrafter:
    """What followed when the last three, or two, tokens stood in this sequence before; the latest such place."""

    def __init__(self) -> None:
        self._texts: dict[str, bytearray] = {}  # tokens as bytes of fixed width: finding in them is one fast call

    def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
        self._texts = {request.id: self._texts.get(request.id) or bytearray() for request in requests}
        for request, count in zip(requests, num_drafts, strict=True):
            text = self._texts[request.id]
            new = request.token_ids[len(text) // _BYTES :]
            text += b"".join(token_id.to_bytes(_BYTES, "little") for token_id in new)
            place = _latest(text)
            request.drafts = _continued(request.token_ids, place, count) if place else []
        return True


def _latest(text: bytearray) -> int:
    """The place, in tokens, after the latest earlier occurrence of the last ones; 0 where there is none."""
    for length in range(_LONGEST, _SHORTEST - 1, -1):
        pattern = text[-length * _BYTES :]
        if len(text) <= len(pattern):
            continue
        found = text.rfind(pattern, 0, len(text) - 1)
        while found > 0 and found % _BYTES:
            found = text.rfind(pattern, 0, found + len(pattern) - 1)
        if found >= 0:
            return found // _BYTES + length
    return 0


def _continued(token_ids: list[int], place: int, count: int) -> list[int]:
    """`count` tokens from there on; past the end the same again, as in a text that repeats itself."""
    period = len(token_ids) - place
    return [token_ids[place + i % period] for i in range(count)]


@dataclass(slots=True, eq=False)
class _Turn:
    """A sequence that is being drafted for: `mirror` is what the drafting model knows of it."""

    request: Request
    mirror: Request
    num_drafts: int


class ModelDrafter:
    """A smaller model of the same vocabulary, with blocks of its own.

    After its drafts have been verified it goes on where they were right. All may have been: then the last of them,
    which it has proposed but not read, is among what it has to read next.
    """

    def __init__(
        self, model: ServedModel, num_blocks: int, *, num_rows: int, max_len: int, max_batch_tokens: int
    ) -> None:
        self._model = model
        self._blocks = Blocks(num_blocks, model.block_size, num_rows, max_len, prefix_caching=False)
        self._runner = Runner(self._blocks, max_batch_tokens)
        self._max_batch_tokens = max_batch_tokens
        self._mirrors: dict[str, Request] = {}
        model.allocate(num_blocks, 0)

    def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
        self._forget_all_but(requests)
        plan, turns, is_steady = Plan(), [], True
        for request, count in zip(requests, num_drafts, strict=True):
            if len(request.token_ids) + count > self._blocks.max_len:
                request.drafts = []  # longer than the drafting model can read
                continue
            mirror = self._mirror(request)
            need = len(mirror.token_ids) - mirror.num_computed
            is_steady = is_steady and need <= 2
            taken = min(need, self._max_batch_tokens - plan.total_tokens)
            if not taken or not self._blocks.grow(mirror, len(mirror.token_ids) + count - 1):
                continue
            _enter(plan, mirror, taken)
            if taken == need:
                turns.append(_Turn(request, mirror, count))
        while plan.requests:
            turns, plan = self._draft_one(plan, turns), Plan()
            for turn in turns:
                _enter(plan, turn.mirror, 1)
        return is_steady

    def check(self) -> None:
        """Raises AssertionError where the books do not agree."""
        self._blocks.check(self._mirrors.values())

    def _draft_one(self, plan: Plan, turns: list[_Turn]) -> list[_Turn]:
        """Run the plan and add a draft to each turn. Returns the turns that go on."""
        logits_RV = self._model.step(self._runner.build(plan, only_last=True).batch)
        for mirror, count in zip(plan.requests, plan.num_tokens, strict=True):
            mirror.num_computed += count
        rows = [Row(turn.request, len(turn.request.drafts)) for turn in turns]
        # By the request's own random numbers, as the model will choose: like distributions then give equal tokens.
        token_ids = sample(logits_RV, rows).tolist() if rows else []
        going = []
        for turn, token_id in zip(turns, token_ids, strict=True):
            if token_id == UNUSABLE:
                continue
            turn.request.drafts.append(token_id)
            if len(turn.request.drafts) < turn.num_drafts:
                going.append(turn)
        return going

    def _mirror(self, request: Request) -> Request:
        """What the drafting model knows of the request, with as much of its state as proved right."""
        request.drafts = []
        mirror = self._mirrors.get(request.id)
        if mirror is None:
            mirror = Request(request.id, [], SamplingParams(), max_len=request.max_len, seed=0)
            mirror.token_ids = request.token_ids  # the same list, which grows
            self._mirrors[request.id] = mirror
            self._blocks.seat(mirror, [])
        base, drafts = mirror.num_prompt, mirror.drafts
        num_right = 0
        for draft, token_id in zip(drafts, request.token_ids[base:], strict=False):
            if draft != token_id:
                break
            num_right += 1
        right = min(base + num_right, len(request.token_ids) - 1)
        mirror.num_computed = min(mirror.num_computed, right)
        mirror.num_prompt = len(request.token_ids)  # those known when it drafts
        mirror.drafts = request.drafts  # again the same list
        return mirror

    def _forget_all_but(self, requests: Sequence[Request]) -> None:
        wanted = {request.id for request in requests}
        for request_id in [request_id for request_id in self._mirrors if request_id not in wanted]:
            self._blocks.release(self._mirrors.pop(request_id))


def _enter(plan: Plan, mirror: Request, count: int) -> None:
    plan.requests.append(mirror)
    plan.num_tokens.append(count)
    plan.total_tokens += count
