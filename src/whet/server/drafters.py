"""Propose draft tokens, from earlier text of the same sequence or with a smaller model.

Source of the former: prompt lookup (Saxena, 2023), which is n-gram matching within the sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from whet.models.step import Allocation, ServedModel
from whet.server.blocks import Blocks
from whet.server.request import Request
from whet.server.runner import Runner
from whet.server.sampler import UNUSABLE, Row, sample
from whet.server.sampling_params import SamplingParams
from whet.server.scheduler import Plan

_LONGEST, _SHORTEST = 3, 2  # tokens of the n-grams that are looked up
_BYTES = 4


class Drafter(Protocol):
    """Propose draft tokens for requests."""

    def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
        """Set `drafts` of each request to up to `num_drafts[i]` tokens. All tokens but the last are computed.

        Return False if there was other work too, such as a new prompt. The time is then not typical.
        """


class NgramDrafter:
    """Propose the tokens that followed the latest earlier occurrence of the last three, or two, tokens."""

    def __init__(self) -> None:
        self._texts: dict[str, bytearray] = {}  # tokens as bytes of fixed width, in which searching is fast

    def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
        self._texts = {request.id: self._texts.get(request.id) or bytearray() for request in requests}
        for request, count in zip(requests, num_drafts, strict=True):
            text = self._texts[request.id]
            new = request.token_ids[len(text) // _BYTES :]
            text += b"".join(token_id.to_bytes(_BYTES, "little", signed=True) for token_id in new)
            place = _latest(text)
            request.drafts = _continued(request.token_ids, place, count) if place else []
        return True


def _latest(text: bytearray) -> int:
    """Return the place, in tokens, after the latest earlier occurrence of the last tokens; 0 if there is none."""
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
    """Return `count` tokens from `place` on. Past the end, they repeat from `place`, as in a text that repeats."""
    period = len(token_ids) - place
    return [token_ids[place + i % period] for i in range(count)]


@dataclass(slots=True, eq=False)
class _Turn:
    """Hold a sequence that is being drafted for. `mirror` is the same sequence in the drafting model."""

    request: Request
    mirror: Request
    num_drafts: int


class ModelDrafter:
    """Draft with a smaller model of the same vocabulary, which has its own blocks and states, of the size `room`.

    After its drafts have been verified, the model continues from the last accepted one. If all were accepted, it must
    first read its own last draft, which it has proposed but not read yet.
    """

    def __init__(
        self, model: ServedModel, room: Allocation, *, num_rows: int, max_len: int, max_batch_tokens: int
    ) -> None:
        self._model = model
        block_size = model.block_size if model.bytes_per_block else 0
        self._blocks = Blocks(room.num_blocks, block_size, num_rows, max_len, prefix_caching=False)
        self._runner = Runner(self._blocks, max_batch_tokens)
        self._max_batch_tokens = max_batch_tokens
        self._mirrors: dict[str, Request] = {}
        model.allocate(room)

    def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
        self._forget_all_but(requests)
        plan, turns, is_steady = Plan(), [], True
        for request, count in zip(requests, num_drafts, strict=True):
            if request.num_before or len(request.token_ids) + count > self._blocks.max_len:
                request.drafts = []  # the drafting model has not read what came before, or cannot read so much
                continue
            mirror = self._mirror(request)
            need = len(mirror.token_ids) - mirror.num_computed
            is_steady = is_steady and need <= 2
            taken = min(need, self._max_batch_tokens - plan.total_tokens)
            if not taken or not self._blocks.grow(mirror, len(mirror.token_ids) + count - 1):
                continue
            plan.add(mirror, taken)
            if taken == need:
                turns.append(_Turn(request, mirror, count))
        while plan.requests:
            turns, plan = self._draft_one(plan, turns), Plan()
            for turn in turns:
                plan.add(turn.mirror, 1)
        return is_steady

    def check(self) -> None:
        """Raise AssertionError unless the records of blocks are consistent."""
        self._blocks.check(self._mirrors.values())

    def _draft_one(self, plan: Plan, turns: list[_Turn]) -> list[_Turn]:
        """Run the plan, add a draft to each turn, and return the turns that need more drafts."""
        logits_RV = self._model.step(self._runner.build(plan, only_last=True).batch)
        for mirror, count in zip(plan.requests, plan.num_tokens, strict=True):
            mirror.num_computed += count
        rows = [Row(turn.request, len(turn.request.drafts)) for turn in turns]
        # Use the same random numbers of the request as the model will: similar distributions then give equal tokens.
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
        """Return the drafting model's copy of the request, set back to the tokens that proved right."""
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
        mirror.num_prompt = len(request.token_ids)  # the tokens that are known before it drafts
        mirror.drafts = request.drafts  # the same list, which grows
        return mirror

    def _forget_all_but(self, requests: Sequence[Request]) -> None:
        wanted = {request.id for request in requests}
        for request_id in [request_id for request_id in self._mirrors if request_id not in wanted]:
            self._blocks.release(self._mirrors.pop(request_id))
