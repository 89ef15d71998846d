"""A scheduler without a model: what is asked of it, and what a step would do."""

from driving import make_request

from whet.server.blocks import Blocks
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.scheduler import Plan, Scheduler
from whet.server.snapshots import Snapshots


def make_scheduler(
    num_blocks: int = 100,
    max_num_seqs: int = 4,
    max_batch_tokens: int = 20,
    *,
    snapshots: Snapshots | None = None,
    **options: float,
) -> Scheduler:
    """Without blocks, there is a state of fixed size only."""
    blocks = Blocks(num_blocks, 4 if num_blocks else 0, max_num_seqs, 200)
    return Scheduler(
        blocks, max_num_seqs=max_num_seqs, max_batch_tokens=max_batch_tokens, snapshots=snapshots, **options
    )


def ask(scheduler: Scheduler, num_prompt: int, first: int = 0) -> Request:
    request = make_request([first] * num_prompt, SamplingParams(temperature=0, max_tokens=100))
    scheduler.add(request)
    return request


def compute(plan: Plan, token_id: int = 1) -> None:
    """What a step would do: all planned tokens computed, one new token where the last was among them."""
    for request, count in zip(plan.requests, plan.num_tokens, strict=True):
        request.num_computed += count - len(request.drafts)
        request.drafts = []
        if request.num_computed == len(request.token_ids):
            request.token_ids.append(token_id)


def planned(plan: Plan) -> list[tuple[Request, int]]:
    return list(zip(plan.requests, plan.num_tokens, strict=True))
