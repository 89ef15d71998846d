"""Masks in the sampler: the kernel's and torch's, against the rule in float64; and how long a mask may take a step."""

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from driving import make_request
from guided import TOKENIZER, VOCAB, request
from naive import drawn, processed

from whet.kernels.sample import UNUSABLE
from whet.server import masks
from whet.server import sampler as sampler_module
from whet.server.masks import MaskFiller, Masks
from whet.server.output_constraint import OutputConstraint
from whet.server.randomness import uniform
from whet.server.sampler import Row, Sampler
from whet.server.sampling_params import SamplingParams

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 1},
    {"temperature": 1.0, "seed": 2, "top_k": 3},
    {"temperature": 1.0, "seed": 3, "top_p": 0.6},
    {"temperature": 1.5, "seed": 4, "min_p": 0.2},
    {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.7, "presence_penalty": 1.0, "logit_bias": {2: 4.0}},
]


def masks_of(allowed_RV: np.ndarray, rows: list[int]) -> Masks:
    """Masks of some of the rows."""
    num_tokens = allowed_RV.shape[1]
    padded = np.zeros((len(rows), -(-(num_tokens + 1) // 32) * 32), bool)
    padded[:, :num_tokens] = allowed_RV[rows]
    words = np.packbits(padded, axis=1, bitorder="little").view(np.uint32)
    of_row = np.full(len(allowed_RV), -1, np.int32)
    of_row[rows] = np.arange(len(rows))
    return Masks(words, of_row)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 200, 1037])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_masked_row_chooses_among_the_allowed(
    vocab_size: int, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernels:
        monkeypatch.setattr(sampler_module, "kernels_for", lambda logits: None)
    generator = np.random.default_rng(vocab_size)
    for _ in range(10):
        logits = torch.from_numpy(generator.normal(size=(2 * len(KINDS), vocab_size)).astype(np.float32)) * 3
        before = logits.clone()
        allowed = generator.random(logits.shape) < generator.random()
        allowed[:, generator.integers(vocab_size)] = True
        made = [make_request([0], SamplingParams(max_tokens=9, **kind)) for kind in KINDS for _ in range(2)]
        for one in made:
            one.params.logit_bias.pop(2, None) if vocab_size < 3 else None  # type: ignore[attr-defined]
        found = Sampler().sample(logits, [Row(one) for one in made], masks_of(allowed, list(range(1, len(made), 2))))
        for i, one in enumerate(made):
            expected = processed(logits[i], [0], [], one.params, set())
            if i % 2:
                expected[torch.from_numpy(~allowed[i])] = -torch.inf
            best = int(expected.argmax())
            assert found[i] == (best if one.params.is_greedy else drawn(expected, one.params, uniform(one.seed, 0)))
        torch.testing.assert_close(logits, before, rtol=0, atol=0)  # the model's own are left alone


@pytest.mark.parametrize("has_kernels", [True, False])
def test_an_empty_mask_and_what_is_no_number(has_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_kernels:
        monkeypatch.setattr(sampler_module, "kernels_for", lambda logits: None)
    allowed = np.ones((4, 40), bool)
    allowed[0] = False
    allowed[1:, 7] = False
    logits = torch.zeros(4, 40)
    logits[1, 7], logits[2, 7], logits[3, 7] = torch.nan, torch.inf, -torch.inf
    rows = [Row(make_request([1], SamplingParams(temperature=0))) for _ in range(4)]
    assert Sampler().sample(logits, rows, masks_of(allowed, [0, 1, 2, 3])).tolist() == [UNUSABLE] * 3 + [0]


def test_rows_without_a_structure_have_no_mask() -> None:
    plain, guided = request(None), request(OutputConstraint.choice(["yes", "no"]))
    filler = MaskFiller(VOCAB)
    assert filler.begin([Row(plain)])() is None
    found = filler.begin([Row(plain), Row(guided), Row(plain)])()
    assert found is not None
    assert found.of_row.tolist() == [-1, 0, -1]
    assert 2 <= np.unpackbits(found.words.view(np.uint8)).sum() <= 6


def test_masks_are_made_while_the_model_computes() -> None:
    """`begin` returns before the work is done, and leaves the thread that runs the model free."""
    filler = MaskFiller(VOCAB, is_beside=True)
    filler.begin([Row(request(OutputConstraint.choice(["yes"])))])()
    waiting: Future[None] = Future()
    assert filler._thread is not None
    blocker = filler._thread.submit(waiting.result)
    masking = filler.begin([Row(request(OutputConstraint.choice(["yes"])))])
    assert not blocker.done()
    waiting.set_result(None)
    assert masking() is not None


@pytest.mark.parametrize("text", ['["a", 1.5, {"b": null}]', "[]", '[{"name": "zoo"}, false]'])
def test_masks_are_the_same_beside_the_model_and_after_it(text: str) -> None:
    """Both ways allow what the text goes on with, and the same tokens."""
    guided = [request(OutputConstraint.json_schema({"type": "array"})) for _ in range(3)]
    fillers = [MaskFiller(VOCAB, is_beside=is_beside) for is_beside in (False, True)]
    rows = [Row(one) for one in guided]
    for token_id in TOKENIZER.encode(text, False):
        after, beside = (filler.begin(rows)() for filler in fillers)
        assert after is not None and beside is not None
        np.testing.assert_array_equal(after.words, beside.words)
        assert (after.words[:, token_id // 32] >> np.uint32(token_id % 32) & 1 == 1).all()
        for one in guided:
            assert one.guide is not None
            one.guide.consume(token_id)


def test_no_rows_have_no_masks() -> None:
    assert MaskFiller(VOCAB).begin(())() is None


@pytest.mark.parametrize("num_cores", [2, 3])
def test_masks_are_made_beside_the_model_where_it_leaves_a_core(
    num_cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "allowed_cores", lambda: range(num_cores))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    filler = MaskFiller(VOCAB)
    assert filler.begin([Row(request(OutputConstraint.choice(["yes"])))])() is not None
    assert (filler._thread is not None) is (num_cores == 3)


def test_before_min_tokens_a_stop_token_is_forbidden_even_as_text() -> None:
    letter, other = (TOKENIZER.encode(text, False)[0] for text in ("e", "x"))
    word = OutputConstraint.regex("[a-z]{9}")
    rows = [Row(request(word, stop_token_ids=[letter], min_tokens=count)) for count in (0, 3)]
    found = MaskFiller(VOCAB, is_beside=False).begin(rows)()
    assert found is not None
    bits = np.unpackbits(found.words.view(np.uint8), axis=1, bitorder="little")
    assert bits[:, letter].tolist() == [1, 0]
    assert bits[:, other].tolist() == [1, 1]
