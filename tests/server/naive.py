"""What an output must be, by the slowest and plainest way: one request alone, all its tokens anew for each next one.

Sampling follows the rule that whet.server.torch_sampler states, written a second time, token by token over the whole
vocabulary.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from whet.server.randomness import uniform
from whet.server.request import TokenLogprobs
from whet.server.sampling_params import SamplingParams

LogitsAfter = Callable[[Sequence[int]], Tensor]


def naive_output(
    logits_after: LogitsAfter, prompt: list[int], params: SamplingParams, eos_ids: Sequence[int] = ()
) -> list[int]:
    """The output's tokens; params needs max_tokens, and a seed unless it is greedy."""
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_ids))
    output: list[int] = []
    while len(output) < (params.max_tokens or 0):
        logits = processed(logits_after([*prompt, *output]), prompt, output, params, ends)
        if params.temperature == 0:
            token_id = int(logits.argmax())
        else:
            token_id = drawn(logits, params, uniform(params.seed or 0, len(output)))
        output.append(token_id)
        if token_id in ends:
            break
    return output


def naive_logprobs(logits_after: LogitsAfter, token_ids: list[int], first: int) -> list[float]:
    """Of the tokens from `first` on, each under the model as it is."""
    return [
        float(logits_after(token_ids[:i]).double().log_softmax(0)[token_ids[i]]) for i in range(first, len(token_ids))
    ]


def processed(logits: Tensor, prompt: list[int], output: list[int], params: SamplingParams, ends: set[int]) -> Tensor:
    logits = logits.double().clone()
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += bias
    if len(output) < params.min_tokens:
        for token_id in ends:
            logits[token_id] = -torch.inf
    for token_id in set(prompt + output):
        factor = params.repetition_penalty
        logits[token_id] = logits[token_id] / factor if logits[token_id] > 0 else logits[token_id] * factor
    for token_id in set(output):
        logits[token_id] -= params.frequency_penalty * output.count(token_id) + params.presence_penalty
    return logits


def kept(logits: Tensor, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Tokens in order and their probabilities, after truncation."""
    probs = torch.softmax(logits.double() / params.temperature, 0).numpy()
    order = sorted(range(len(probs)), key=lambda i: (-float(logits[i]), i))
    order = [i for i in order if probs[i] >= params.min_p * probs.max() and probs[i] > 0]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        shares = np.cumsum(probs[order]) / probs[order].sum()
        order = order[: int(np.sum(shares < np.float32(params.top_p))) + 1]
    return np.array(order), probs[order] / probs[order].sum()


def drawn(logits: Tensor, params: SamplingParams, number: float) -> int:
    order, probs = kept(logits, params)
    place = int(np.sum(np.cumsum(probs) <= number))
    return int(order[min(place, len(order) - 1)])


def values(entries: Sequence[TokenLogprobs | None] | None) -> list[float]:
    """The logprobs alone; the first of a prompt has none."""
    return [entry.logprob for entry in entries or () if entry is not None]
