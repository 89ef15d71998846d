"""Adaptive compression: a call without a state, steps and an engine's rows are one function of the text."""

from typing import Any

import pytest
import torch
from driving import make_request, make_stepper, outputs
from naive import naive_output
from torch import Tensor

from ltm_models import make, random_ids
from whet.models.memory_bank import Ltm
from whet.models.memory_bank.rows import RowsOfLtmStates
from whet.server.drafters import NgramDrafter
from whet.server.sampling_params import SamplingParams
from whet.server.speculative import Speculation

ADAPTS: dict[str, dict[str, Any]] = {
    "bank": {},
    "grows": {"max_memory_slots": 30, "compression_tolerance": 0.01},
    "spans of two segments, one layer": {"memory_update_interval": 2, "memory_layers": (1,)},
    "beside a test-time memory": {"test_time_memory": "mlp"},
}


def adapting(name: str, **changes: Any) -> Ltm:
    keys = {"memory_slots": 12, "min_memory_slots": 2, "compression_tolerance": 0.9}
    return make(**keys | {"use_adaptive_compression": True} | ADAPTS[name] | changes)


def stepped(model: Ltm, ids_BT: Tensor, size: int) -> Tensor:
    """Return the logits after each token, read in parts."""
    state = model.new_state(len(ids_BT))
    with torch.no_grad():
        return torch.cat([model(part, state) for part in ids_BT.split(size, 1)], 1)


@pytest.mark.parametrize("name", ADAPTS)
def test_a_call_without_a_state_is_what_steps_give(name: str) -> None:
    model, ids = adapting(name), random_ids(2, 75)
    wanted = stepped(model, ids, 1)
    plain = make(**{**model.config.model_dump(), "use_adaptive_compression": False})
    with torch.no_grad():
        assert (plain(ids) - wanted).abs().max() > 1e-3, "nothing was merged or grown: the test would show nothing"
        torch.testing.assert_close(model(ids), wanted, atol=2e-5, rtol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(model(ids), wanted, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(model(ids), wanted, atol=2e-5, rtol=1e-4)  # while gradients are recorded, too
    for row in (0, 1):
        torch.testing.assert_close(stepped(model, ids[row : row + 1], 7)[0], wanted[row], atol=2e-5, rtol=1e-4)


def test_padding_behind_a_text_changes_none_of_its_logits() -> None:
    model, ids = adapting("bank"), random_ids(2, 60)
    ids[0, 37:] = 0
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[0, :37], model(ids[:1, :37])[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("granularity", ["none", "layer", "block"])
def test_gradients_go_through_what_is_merged(granularity: str) -> None:
    """Recomputation gives the gradients of a plain call, and a step against them lowers the loss of the same call."""
    ids, found = random_ids(1, 60), []
    for one in ("none", granularity):
        model = adapting("bank")
        model.granularity = one
        torch.nn.functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:]).backward()
        found.append([weight.grad for weight in model.parameters()])
    assert all(one is not None and one.isfinite().all() for one in found[0])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


def test_training_reads_spans_side_by_side_without_compression() -> None:
    model, ids = adapting("bank").train(), random_ids(1, 60)
    plain = make(**{**model.config.model_dump(), "use_adaptive_compression": False})
    torch.testing.assert_close(model(ids), plain(ids))


@pytest.mark.parametrize("has_drafts", [False, True])
def test_an_engine_without_kernels_gives_the_tokens_of_a_call(has_drafts: bool) -> None:
    """Prompts that share a prefix go on from snapshots, in chunks, and with drafts that are taken back."""
    model, params = adapting("bank"), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    start = random_ids(1, 48)[0].tolist()
    prompts = [start + random_ids(1, length, length)[0].tolist() for length in (1, 9, 20)]
    with torch.no_grad():
        wanted = [naive_output(lambda tokens: model(torch.tensor([tokens]))[0, -1], p, params) for p in prompts]
    speculation = Speculation(NgramDrafter(), 3) if has_drafts else None
    served = RowsOfLtmStates(model)
    stepper = make_stepper(served, max_num_seqs=2, max_batch_tokens=11, num_snapshots=4, speculation=speculation)
    for prompt, tokens in zip(prompts, wanted, strict=True):
        assert [one.token_ids for one in outputs(stepper, [make_request(prompt, params)])] == [tokens]
    assert stepper.scheduler.prefix_hits > 0
