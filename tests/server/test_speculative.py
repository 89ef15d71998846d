"""Speculation with drafts that were drawn: the joint distribution of the output is the model's own."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from driving import Run, make_request, make_stepper, outputs
from hash_model import HashModel
from scipy import stats

from whet.models.step import Allocation
from whet.server.drafters import ModelDrafter, NgramDrafter
from whet.server.request import Request
from whet.server.sampling_params import SamplingParams
from whet.server.speculation_controller import SpeculationController
from whet.server.speculative import Speculation, accepted

VOCAB = 4
COUNT = 1500


def drafter(seed: int, max_batch_tokens: int = 256) -> ModelDrafter:
    model = HashModel(vocab_size=VOCAB, seed=seed)
    return ModelDrafter(model, Allocation(num_blocks=300), num_rows=64, max_len=64, max_batch_tokens=max_batch_tokens)


def joint(prompt: list[int], params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The probability of each output of three tokens."""
    model = HashModel(vocab_size=VOCAB)

    def probs(token_ids: list[int]) -> torch.Tensor:
        scaled = model.logits_after(token_ids).double() / params.temperature
        if params.top_k:
            scaled[scaled < scaled.topk(params.top_k).values[-1]] = -torch.inf
        return scaled.softmax(0)

    found = {}
    for output in product(range(VOCAB), repeat=3):
        p = 1.0
        for i, token_id in enumerate(output):
            p *= float(probs([*prompt, *output[:i]])[token_id])
        found[output] = p
    return found


def test_chi_square_of_whole_outputs() -> None:
    prompt = [1, 2, 3]
    for values in ({"temperature": 1.5}, {"temperature": 2.0, "top_k": 3}):
        params = [SamplingParams(seed=i, max_tokens=3, **values) for i in range(COUNT)]
        speculation = Speculation(drafter(seed=2), 2)
        stepper = make_stepper(
            HashModel(vocab_size=VOCAB), num_blocks=300, max_num_seqs=64, max_batch_tokens=256, speculation=speculation
        )
        done = outputs(stepper, [make_request(prompt, one) for one in params])
        expected = joint(prompt, params[0])
        times = dict.fromkeys(expected, 0)
        for one in done:
            times[tuple(one.token_ids)] += 1
        likely = [output for output, p in expected.items() if p * COUNT >= 5]
        rest = COUNT - sum(times[output] for output in likely)
        rest_p = 1 - sum(expected[output] for output in likely)
        found = np.array([times[output] for output in likely] + [rest] * (rest_p > 0.001))
        wanted = np.array([expected[output] for output in likely] + [rest_p] * (rest_p > 0.001))
        assert stats.chisquare(found, wanted / wanted.sum() * found.sum()).pvalue > 1e-3, values
        assert sum(times[output] for output, p in expected.items() if p == 0) == 0
        assert 0.2 < speculation.num_accepted / speculation.num_drafted < 0.95


def test_the_same_seed_gives_the_same_output_in_any_company() -> None:
    params = [SamplingParams(temperature=1.2, seed=i, max_tokens=20) for i in range(6)]

    def run(some: list[SamplingParams]) -> list[list[int]]:
        stepper = make_stepper(HashModel(vocab_size=VOCAB), speculation=Speculation(drafter(seed=2), 3))
        return [one.token_ids for one in outputs(stepper, [make_request([1, 2], one) for one in some])]

    assert run(params) == [run([one])[0] for one in params]


class Now(SpeculationController):
    """Drafts in the steps that it is told to."""

    def __init__(self, period: int, count: int) -> None:
        super().__init__()
        self._period, self._count, self._asked = period, count, 0

    def wants_drafts(self, num_seqs: int) -> bool:
        self._asked += 1
        return self._asked % self._period < self._count


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 1.3},
        {"temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.5},
        {"temperature": 2, "top_k": 3},
    ],
)
@pytest.mark.parametrize("drafting", ["a model", "the text"])
def test_a_seed_gives_the_same_output_whenever_drafts_are_made(drafting: str, values: dict[str, Any]) -> None:
    """Measured times decide when drafts are made, so they must not be seen in the output."""

    def run(controller: Now | None) -> list[list[int]]:
        speculation = None
        if controller is not None:
            speculation = Speculation(drafter(seed=2) if drafting == "a model" else NgramDrafter(), 3, controller)
        stepper = make_stepper(HashModel(vocab_size=VOCAB), speculation=speculation)
        requests = [make_request([1, 2, 1], SamplingParams(seed=i, max_tokens=30, **values)) for i in range(6)]
        found = [one.token_ids for one in outputs(stepper, requests)]
        assert speculation is None or (speculation.num_accepted > 0) == (controller._count > 0)
        return found

    without = run(None)
    assert len({tuple(one) for one in without}) == 6
    for period, count in ((1, 0), (1, 1), (2, 1), (5, 2), (7, 6)):
        assert run(Now(period, count)) == without


def test_what_is_accepted_of_looked_up_drafts() -> None:
    request: Request = make_request([1], SamplingParams(temperature=0, max_tokens=9))
    request.drafts = [4, 5, 6]
    assert accepted(request, [4, 5, 6, 7]) == [4, 5, 6, 7]
    assert accepted(request, [4, 8, 6, 7]) == [4, 8]
    assert accepted(request, [0, 5, 6, 7]) == [0]
    assert accepted(request, [4, 5, -1, 7]) == [4, 5, -1]


def test_no_draft_that_could_not_be_used() -> None:
    """Beyond the longest output lies the end of the tables."""
    for max_tokens in range(1, 9):
        run = Run(make_stepper(HashModel(vocab_size=VOCAB), speculation=Speculation(drafter(seed=1), 5)))
        request = make_request([1, 2], SamplingParams(temperature=0, max_tokens=max_tokens))
        run.add(request)
        drafted = []
        while run.stepper.scheduler.has_work:
            run.step()
            if request.drafts:
                drafted.append(len(request.token_ids) + len(request.drafts))
        assert request.num_output == max_tokens
        assert all(count <= request.max_len - 1 for count in drafted)


def test_drafts_wait_until_they_pay() -> None:
    """With a drafter that is never right, steps with drafts bring no more tokens and take longer."""
    controller = SpeculationController()
    speculation = Speculation(drafter(seed=1), 3, controller)
    requests = [make_request([1, 2], SamplingParams(temperature=0, max_tokens=60))]
    drafted = 0
    for _ in range(300):
        requests[0].num_computed = len(requests[0].token_ids) - 1
        speculation.propose(requests)
        had = bool(requests[0].drafts)
        drafted += had
        requests[0].drafts = []
        speculation.observe(1, had, 1, 0.03 if had else 0.01)
    assert 4 <= drafted < 30
    assert controller.gain is not None
    assert controller.gain < 0.5
