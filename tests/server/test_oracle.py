"""Greedy tokens against transformers' generate(), one prompt at a time, whatever the engine does meanwhile.

Ours run all together, in fp32, with few blocks, small steps, found prefixes and drafts. Two of a model's logits may be
so close that rounding decides: a difference counts only where the best two are at least 1e-4 apart.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from whet.models.config_file import read_json
from whet.models.decoder import load_decoder
from whet.models.decoder.paged import PagedDecoder
from whet.models.families import open_model
from whet.models.hybrid.native import NativeDecoder
from whet.models.selective import load_selective
from whet.models.selective.config import MODEL_TYPES
from whet.models.selective.native import NativeSelective
from whet.models.state_rows import ServedInRows
from whet.models.step import ServedModel
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams
from whet.server.stats import Stats
from whet.server.text import Tokenizer
from whet.workloads import WEIGHTS

transformers = pytest.importorskip("transformers")

DOCS_GPT = WEIGHTS / "docs-gpt"
MAX_TOKENS = 24
COMMON = {"vocab_size": 120, "hidden_size": 64, "num_hidden_layers": 2}
SIZES = {
    **COMMON,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FAMILIES = {
    "Llama": {**SIZES, "tie_word_embeddings": True},
    "Mistral": {**SIZES, "sliding_window": 20},
    "Qwen2": SIZES,
    "Qwen3": {**SIZES, "head_dim": 16},
    "Mamba": COMMON,
    "FalconMamba": COMMON,
    "Mamba2": {**COMMON, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 16},
}


def saved(family: str, directory: Path) -> Any:
    """A model of random weights, written to the directory."""
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    theirs.save_pretrained(directory)
    return theirs


def prompts(vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)

    def some(count: int) -> list[int]:
        return torch.randint(3, vocab_size, (count,), generator=generator).tolist()

    shared = some(21)
    return [some(1), some(5), some(40), shared + some(3), shared + some(9), some(8) * 4, some(70)]


def theirs_alone(theirs: Any, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The tokens, and by how much the best logit was ahead of the second at each."""
    with torch.no_grad():
        made = theirs.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=MAX_TOKENS,
            min_new_tokens=MAX_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
    best = [logits[0].topk(2).values for logits in made.logits]
    return made.sequences[0, len(prompt) :].tolist(), [float(two[0] - two[1]) for two in best]


def check(model: ServedModel, theirs: Any, some: list[list[int]], draft: ServedModel | None = None) -> Stats:
    theirs.generation_config.eos_token_id = None
    blocks = -(-96 // model.block_size) + 2  # one of the longest has room, and little else
    bytes_per_block = model.bytes_per_block
    if draft is not None:
        bytes_per_block += draft.bytes_per_block * model.block_size // draft.block_size
    of_drafts = model.bytes_to_rewind + 4 * model.bytes_per_draft
    of_states = 7 * (model.bytes_per_state + of_drafts) + 9 * model.bytes_per_state
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    with Engine(
        model,
        EngineOptions(
            max_num_seqs=7, max_batch_tokens=32, max_model_len=96, memory=blocks * bytes_per_block + of_states
        ),
        draft=draft,
    ) as engine:
        ours = [*engine.generate(some, params), *engine.generate(some, params)]
        stats = engine.stats()
    assert (stats.num_preemptions > 0) is (model.bytes_per_block > 0)
    num_compared = 0
    wanted = [theirs_alone(theirs, prompt) for prompt in some]
    for prompt, one, (expected, gaps) in zip([*some, *some], ours, [*wanted, *wanted], strict=True):
        differing = [i for i in range(MAX_TOKENS) if one.token_ids[i] != expected[i]]
        if differing:
            assert gaps[differing[0]] < 1e-4, (prompt, one.token_ids, expected)
        num_compared += differing[0] if differing else MAX_TOKENS
    assert num_compared > 0.7 * len(ours) * MAX_TOKENS
    return stats


def opened(directory: Path, kernels: bool) -> ServedModel:
    if not kernels:
        if read_json(directory)["model_type"] in MODEL_TYPES:
            return ServedInRows(load_selective(directory))
        return PagedDecoder(load_decoder(directory), block_size=8)
    model = open_model(directory, dtype="fp32")
    if not isinstance(model, NativeDecoder | NativeSelective):
        pytest.skip("no compiler here")
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
def test_random_models(family: str, kernels: bool, tmp_path: Path) -> None:
    theirs = saved(family, tmp_path)
    model = opened(tmp_path, kernels)
    assert check(model, theirs, prompts(COMMON["vocab_size"])).prefix_cache_hits > 0


@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
def test_docs_gpt(kernels: bool) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(DOCS_GPT, dtype=torch.float32)
    tokenizer = Tokenizer(DOCS_GPT)
    texts = [
        "A function is",
        "The import statement",
        "The import statement combines two operations",
        "If the object is a class, the attribute",
        "try: try: try: try:",
        "x",
        "In the following example, the name of the module",
    ]
    model = opened(DOCS_GPT, kernels)
    some = [tokenizer.encode(text) for text in texts]
    check(model, theirs, some)
    draft = PagedDecoder(load_decoder(DOCS_GPT), block_size=16)
    check(model, theirs, some, draft=draft)
