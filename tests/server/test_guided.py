"""Requests with a structure, step by step: which tokens they get, whatever else the engine does with them."""

import json
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest
import regex
import torch
from driving import Run, outputs
from guided import DENSE, EOS, PERSON, TOKENIZER, VOCAB, allowed, random_engine, random_model, random_stepper, request
from hash_model import HashModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import drawn, processed
from torch import Tensor

import whet
from whet.errors import RequestError
from whet.models.step import Allocation
from whet.server.completion import Completion, join
from whet.server.drafters import ModelDrafter, NgramDrafter
from whet.server.engine import Engine
from whet.server.output_constraint import OutputConstraint
from whet.server.randomness import uniform
from whet.server.request import Request
from whet.server.speculative import Speculation

PERSON_STRUCTURE = OutputConstraint.json_schema(PERSON, DENSE)
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 5}
PENALISED: dict[str, Any] = {
    "temperature": 1.2,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "seed": 6,
    "logit_bias": {91: -3.0},
}


def by_brute_force(one: Request, structure: OutputConstraint) -> list[int]:
    """The tokens, from float64 logits and the library's matcher, one after another and all anew."""
    model, output = random_model(), list[int]()
    while len(output) < (one.params.max_tokens or 0):
        mask = allowed(structure, output)
        if mask[VOCAB] and not mask[:VOCAB].any():
            break
        mask[list(one.stop_ids)] |= mask[VOCAB]
        logits = processed(model.logits_after([*one.prompt_ids, *output]), one.prompt_ids, output, one.params, set())
        logits[torch.from_numpy(~mask[:VOCAB])] = -torch.inf
        if one.params.temperature == 0:
            output.append(int(logits.argmax()))
        else:
            output.append(drawn(logits, one.params, uniform(one.seed, len(output))))
        if output[-1] in one.stop_ids:
            break
    return output


STRUCTURES = [
    PERSON_STRUCTURE,
    OutputConstraint.regex(r"[a-f]{2,6}(x|é🙂)*"),
    OutputConstraint.choice(["yes", "no", "perhaps"]),
    OutputConstraint.grammar('root ::= "(" root ")" | [0-9]+'),
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.kind)
@pytest.mark.parametrize("params", [{"temperature": 0.0}, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_tokens_are_the_best_of_those_allowed(structure: OutputConstraint, params: dict[str, Any]) -> None:
    one = request(structure, max_tokens=20, **params)
    expected = by_brute_force(one, structure)
    assert outputs(random_stepper(), [one])[0].token_ids == expected


PARTIAL = [i for i in range(VOCAB) if "\ufffd" in TOKENIZER.token_text(i)]


class WholeText(HashModel):
    """Says only tokens that are whole characters, or the end."""

    def _logits(self, hashes_R: Any, last_R: Any) -> Tensor:
        logits_RV = super()._logits(hashes_R, last_R)
        logits_RV[:, PARTIAL] = -1000.0
        logits_RV[:, EOS] += 6.0
        return logits_RV


@pytest.mark.parametrize("params", [{"temperature": 0.0}, SAMPLED, {**PENALISED, "min_tokens": 5}])
def test_a_structure_that_allows_everything_changes_nothing(params: dict[str, Any]) -> None:
    def completions(structure: OutputConstraint | None) -> list[Completion]:
        options = {"max_num_seqs": 8, "memory": 64 * 2**10}
        model = WholeText(vocab_size=VOCAB, max_model_len=256)
        with Engine(model, whet.EngineOptions(**options), tokenizer=TOKENIZER) as engine:
            chosen = [
                whet.SamplingParams(**{**params, "max_tokens": 60, "seed": i, "structure": structure}) for i in range(6)
            ]
            return engine.generate([f"Prompt {i}" for i in range(6)], chosen)

    plain, guided = completions(None), completions(OutputConstraint.regex(r"(?s:.*)"))
    assert [one.token_ids for one in guided] == [one.token_ids for one in plain]
    assert [(one.text, one.finish_reason) for one in guided] == [(one.text, one.finish_reason) for one in plain]
    assert params["temperature"] == 0 or "stop" in {one.finish_reason for one in guided}


def crowd() -> list[Request]:
    """Guided requests of all kinds among others."""
    prompts = ["The for statement", "A class", "The for statement is", "x " * 20, "Modules"]
    made = []
    for i, prompt in enumerate(prompts * 2):
        structure = [*STRUCTURES, None][i % 5]
        kind = [{"temperature": 0.0}, SAMPLED, PENALISED][i % 3]
        made.append(request(structure, prompt, max_tokens=24, logprobs=2, **kind))
    return made


@pytest.fixture(scope="module")
def alone() -> list[Completion]:
    return [outputs(random_stepper(), [one])[0] for one in crowd()]


@pytest.mark.parametrize("drafting", [None, "ngram", "model", "itself"])
@pytest.mark.parametrize("is_tight", [False, True])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_the_same_tokens_however_steps_are_made(
    alone: list[Completion], drafting: str | None, is_tight: bool, is_chunked: bool
) -> None:
    speculation = None
    if drafting == "ngram":
        speculation = Speculation(NgramDrafter(), 3)
    elif drafting is not None:
        small = random_model(seed=1 if drafting == "itself" else 2)
        speculation = Speculation(
            ModelDrafter(small, Allocation(num_blocks=400), num_rows=8, max_len=256, max_batch_tokens=64), 3
        )
    stepper = random_stepper(speculation, num_blocks=22 if is_tight else 512, max_batch_tokens=13 if is_chunked else 64)
    found = outputs(stepper, crowd())
    assert [one.token_ids for one in found] == [one.token_ids for one in alone]
    assert [(one.text, one.finish_reason) for one in found] == [(one.text, one.finish_reason) for one in alone]
    for one, other in zip(found, alone, strict=True):
        assert [e.logprob for e in one.logprobs or ()] == pytest.approx([e.logprob for e in other.logprobs or ()], 1e-5)
    assert (stepper.scheduler.num_preemptions > 0) is is_tight
    if drafting == "itself":
        assert speculation is not None
        assert speculation.num_accepted > 20


def test_drafts_that_the_grammar_refuses_are_not_verified() -> None:
    class Wrong:
        def propose(self, requests: Sequence[Request], num_drafts: Sequence[int]) -> bool:
            for one, count in zip(requests, num_drafts, strict=True):
                one.drafts = [17] * count
            return True

    speculation = Speculation(Wrong(), 3)
    one = request(OutputConstraint.choice(["yes", "no"]), temperature=0)
    outputs(random_stepper(speculation), [one])
    assert speculation.num_drafted == 0


def test_what_is_complete_ends_and_what_is_not_was_cut() -> None:
    done = outputs(random_stepper(), [request(PERSON_STRUCTURE), request(PERSON_STRUCTURE, max_tokens=3)])
    assert [one.finish_reason for one in done] == ["stop", "length"]
    jsonschema.validate(json.loads(done[0].text), PERSON)
    assert len(done[1].token_ids) == 3
    nothing = outputs(random_stepper(), [request(PERSON_STRUCTURE, max_tokens=0)])[0]
    assert (nothing.token_ids, nothing.finish_reason) == ([], "length")


@pytest.mark.parametrize("params", [{"ignore_eos": True}, {"min_tokens": 90}, {"min_tokens": 90, "ignore_eos": True}])
def test_what_is_complete_ends_whatever_is_asked(params: dict[str, Any]) -> None:
    for structure in (PERSON_STRUCTURE, OutputConstraint.choice(["yes", "no"]), OutputConstraint.regex("a?")):
        done = outputs(random_stepper(), [request(structure, **params)])[0]
        assert done.finish_reason == "stop"
        assert EOS not in done.token_ids


def test_the_end_only_where_the_grammar_may_end() -> None:
    digits = OutputConstraint.regex("[0-9]{3,}")
    eager = {"logit_bias": {EOS: 90.0}}
    done = outputs(random_stepper(), [request(digits, **eager), request(digits, min_tokens=9, **eager)])
    assert re.fullmatch("[0-9]{3,4}", done[0].text), "as soon as it may"
    assert len(done[1].token_ids) == 10, "nine, and the end"
    assert [one.token_ids[-1] for one in done] == [EOS, EOS]
    done = outputs(random_stepper(), [request(digits, ignore_eos=True, max_tokens=30, **eager)])
    assert (done[0].finish_reason, EOS in done[0].token_ids) == ("length", False)


def test_stop_strings_and_stop_tokens() -> None:
    structure = OutputConstraint.regex("(ab|cd){30}")
    cut = outputs(random_stepper(), [request(structure, stop=("da",))])[0]
    whole = outputs(random_stepper(), [request(structure)])[0]
    assert cut.finish_reason == "stop"
    assert whole.text.startswith(cut.text + "da")
    letter = TOKENIZER.encode("b", False)[0]
    ended = outputs(random_stepper(), [request(structure, stop_token_ids=(letter,), logit_bias={letter: 9.0})])[0]
    assert ended.token_ids[-1] == letter
    later = request(structure, stop_token_ids=(letter,), min_tokens=8, logit_bias={letter: 9.0})
    assert len(outputs(random_stepper(), [later])[0].token_ids) >= 8


def test_before_min_tokens_what_the_grammar_needs_is_text() -> None:
    """Tokens that end the output would be forbidden so early; where nothing else is allowed they do not end it."""
    structure = OutputConstraint.regex("b{6}x")
    ends = tuple(i for i in range(VOCAB) if set(TOKENIZER.token_text(i)) == {"b"})
    done = outputs(random_stepper(), [request(structure, stop_token_ids=ends, min_tokens=30)])[0]
    assert (done.text, done.finish_reason) == ("bbbbbbx", "stop")


def test_a_grammar_of_nothing_ends_at_once() -> None:
    for ignore_eos in (False, True):
        one = request(OutputConstraint.grammar('root ::= ""'), ignore_eos=ignore_eos, logprobs=1)
        done = outputs(random_stepper(), [one])[0]
        assert (done.text, done.finish_reason) == ("", "stop")
        assert len(done.token_ids) == (0 if ignore_eos else 1)


def test_log_probabilities_are_of_the_allowed_tokens() -> None:
    one = request(OutputConstraint.choice(["yes", "no"]), temperature=0, logprobs=3)
    entry = (outputs(random_stepper(), [one])[0].logprobs or [])[0]
    mask = torch.from_numpy(allowed(OutputConstraint.choice(["yes", "no"]), [])[:VOCAB])
    logits = random_model().logits_after(one.prompt_ids).double().masked_fill(~mask, -torch.inf)
    expected = logits.log_softmax(0)
    assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-5)
    assert {token_id for token_id, value in entry.top if value > -np.inf} <= set(torch.nonzero(mask)[:, 0].tolist())


def test_parts_of_characters_come_as_whole_ones() -> None:
    structure = OutputConstraint.choice(["é🙂日本", "日é"])
    run = Run(random_stepper())
    one = request(structure)
    run.add(one)
    done = run.until_done()[one.id]
    assert done.text in ("é🙂日本", "日é")
    assert len(done.token_ids) > len(done.text), "each character takes several tokens"
    assert not any("\ufffd" in delta.text for delta in run.deltas[one.id])


def test_choices_of_one_prompt_share_what_is_cached() -> None:
    with random_engine() as engine:
        params = [whet.SamplingParams(seed=seed, structure=PERSON_STRUCTURE, max_tokens=100) for seed in range(4)]
        first = engine.generate(["The for statement is used"] * 4, params)
        again = engine.generate(["The for statement is used"] * 4, params)
    assert [one.token_ids for one in first] == [one.token_ids for one in again]
    assert len({one.text for one in first}) > 1
    assert again[0].num_cached_tokens > 0


def test_a_model_without_numbers_is_still_an_error() -> None:
    model = random_model(nan_after=range(VOCAB))
    with Engine(model, tokenizer=TOKENIZER) as engine:
        done = engine.generate("x", whet.SamplingParams(structure=OutputConstraint.choice(["yes"]), max_tokens=5))
    assert done.finish_reason == "error"
    assert "NaN" in (done.error or "")


def test_a_grammar_that_fails_ends_its_request_alone() -> None:
    failing, other = request(PERSON_STRUCTURE), request(PERSON_STRUCTURE)
    run = Run(random_stepper())
    run.add(failing, other)
    run.step()
    assert failing.guide is not None
    failing.guide.matcher.consume_token(EOS)  # not allowed: the matcher is broken from now on
    done = run.until_done()
    assert done[failing.id].finish_reason == "error"
    assert (done[failing.id].error or "").startswith("the structure cannot go on")
    jsonschema.validate(json.loads(done[other.id].text), PERSON)


def test_a_structure_needs_a_tokenizer_and_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    params = whet.SamplingParams(structure=PERSON_STRUCTURE)
    with Engine(random_model()) as engine, pytest.raises(RequestError, match="needs a tokenizer"):
        engine.generate([1], params)
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with random_engine() as engine, pytest.raises(RequestError, match=r"pip install 'torch-whet\[serve\]'"):
        engine.generate("x", params)


def test_streams_and_asyncio() -> None:
    import asyncio

    params = whet.SamplingParams(structure=PERSON_STRUCTURE, seed=3, max_tokens=100)
    with random_engine() as engine:
        text = engine.generate("x", params).text
        assert join(engine.stream("x", params)).text == text
        found = asyncio.run(engine.generate_async("x", params))
    assert isinstance(found, Completion)
    assert found.text == text


SCALARS = st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 120},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string", "maxLength": 6},
        {"type": "string", "pattern": "^[a-z]{2}-[0-9]{1,3}$"},
        {"type": "string", "format": "date"},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"enum": ["é🙂", 3, None, True, 'quo"te']},
        {"const": {"a": [1, "b"]}},
    ]
)
NAMES = st.sampled_from(["a", "b c", "é", 'q"', "list", "0"])


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda properties, count: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:count],
                "additionalProperties": False,
            },
            st.dictionaries(NAMES, inner, max_size=3),
            st.integers(0, 3),
        ),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(SCALARS, _larger, max_leaves=5), st.integers(0, 100), st.sampled_from([DENSE, None, " "]))
def test_a_random_model_writes_what_any_schema_asks(schema: dict[str, Any], seed: int, whitespace: str | None) -> None:
    one = request(OutputConstraint.json_schema(schema, whitespace), seed=seed, max_tokens=230)
    done = outputs(random_stepper(), [one])[0]
    if done.finish_reason == "length":  # numbers may have as many digits as they like
        return
    assert done.finish_reason == "stop"
    jsonschema.validate(json.loads(done.text), schema, format_checker=jsonschema.FormatChecker())


PARTS = st.sampled_from(["[a-e]", r"\d", "x", "é", "(a|bc)", "(x?yz)", r"\."])
COUNTS = st.sampled_from(["", "?", "{1,3}", "{2}"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(PARTS, COUNTS), min_size=1, max_size=5), st.integers(0, 50))
def test_a_random_model_writes_what_any_expression_matches(parts: list[tuple[str, str]], seed: int) -> None:
    pattern = "".join(part + count for part, count in parts) + "q"
    done = outputs(random_stepper(), [request(OutputConstraint.regex(pattern), seed=seed)])[0]
    assert done.finish_reason == "stop"
    assert regex.fullmatch(pattern, done.text)  # it knows the digits of newer versions of Unicode than Python 3.11
