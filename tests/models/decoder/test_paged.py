import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import OptionError
from whet.models.decoder import Decoder, DecoderConfig, load_decoder
from whet.models.decoder.paged import PagedDecoder
from whet.models.decoder.paged_cache import PagedCache
from whet.models.step import Allocation, ServedModel, StepBatch
from whet.workloads import WEIGHTS

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
VARIANTS = {
    "llama": {},
    "mistral": {"model_type": "mistral", "sliding_window": 5},
    "qwen3": {
        "model_type": "qwen3",
        "head_dim": 16,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
}
NUM_BLOCKS = 40
NOWHERE = 2**30  # a block that is not: to read it fails


def decoder_of(variant):
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(**SMALL | VARIANTS[variant]))
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.normal_(std=0.4 if weight.dim() > 1 else 1.0)
    return decoder


@pytest.fixture(scope="module", params=VARIANTS)
def served(request):
    """One for all examples: the blocks hold what earlier ones left there."""
    model = PagedDecoder(decoder_of(request.param), block_size=4)
    model.allocate(Allocation(num_blocks=NUM_BLOCKS))
    return model


def ints(values):
    return np.array(values, dtype=np.int32)


def step(model: ServedModel, parts, rows=None):
    """One step of [(tokens of a sequence, how many are known, how many are new, its blocks)]; logits [R, V]."""
    width = max(len(blocks) for *_, blocks in parts) + 1
    new = [tokens[done : done + count] for tokens, done, count, _ in parts]
    starts = np.cumsum([0] + [len(tokens) for tokens in new])
    batch = StepBatch(
        token_ids=ints([token for tokens in new for token in tokens]),
        positions=ints([done + place for _, done, count, _ in parts for place in range(count)]),
        query_start=ints(starts),
        context_len=ints([done + count for _, done, count, _ in parts]),
        settled_len=ints([done + count for _, done, count, _ in parts]),
        block_tables=ints([[*blocks, *[NOWHERE] * (width - len(blocks))] for *_, blocks in parts]),
        state_rows=ints(range(len(parts))),
        logit_rows=ints(range(starts[-1]) if rows is None else rows),
    )
    return model.step(batch).clone()


def whole(model, tokens):
    with torch.no_grad():
        return model.decoder(torch.tensor([tokens]))[0].float()


def assert_close(got, wanted, atol=1e-4):
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)


@given(st.data())
def test_any_chunks_in_any_batch_in_any_blocks(served, data):
    texts = data.draw(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=24), min_size=1, max_size=5))
    free = data.draw(st.permutations(range(NUM_BLOCKS)))
    tables = [[free.pop() for _ in range(-(-len(text) // 4))] for text in texts]
    done = [0] * len(texts)
    got = [[] for _ in texts]
    while unfinished := [i for i, text in enumerate(texts) if done[i] < len(text)]:
        chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique=True))
        counts = [data.draw(st.integers(1, len(texts[i]) - done[i])) for i in chosen]
        parts = [
            (texts[i], done[i], count, tables[i][: -(-(done[i] + count) // 4)])
            for i, count in zip(chosen, counts, strict=True)
        ]
        logits = step(served, parts).split(counts)
        for i, count, rows in zip(chosen, counts, logits, strict=True):
            got[i].append(rows)
            done[i] += count
    for text, rows in zip(texts, got, strict=True):
        assert_close(torch.cat(rows), whole(served, text))


def test_trained_model_token_by_token():
    model = PagedDecoder(load_decoder(WEIGHTS / "docs-gpt"), max_model_len=64)
    model.allocate(Allocation(num_blocks=4))
    tokens, blocks = [0, 17, 300, 45, 8], [2, 0, 3, 1]
    wanted = list(tokens)
    logits = step(model, [(tokens, 0, 5, blocks)])[-1]
    for _ in range(50):
        wanted.append(int(whole(model, wanted)[-1].argmax()))
        tokens.append(int(logits.argmax()))
        logits = step(model, [(tokens, len(tokens) - 1, 1, blocks)])[-1]
    assert tokens == wanted
    assert len(set(tokens)) > 10
    assert_close(logits, whole(model, tokens)[-1])


def test_others_in_the_batch_change_only_rounding(served):
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(61, (length,), generator=generator).tolist() for length in (20, 7, 16, 1, 3)]
    tables = [list(range(i * 5, i * 5 + 5)) for i in range(5)]
    together = step(served, [(text, 0, len(text), table) for text, table in zip(texts, tables, strict=True)])
    alone = torch.cat([step(served, [(text, 0, len(text), [9, 8, 7, 6, 5])]) for text in texts])
    assert_close(together, alone, atol=1e-5 * float(alone.abs().max()))


def test_logits_only_where_wanted(served):
    parts = [([1, 2, 3, 4, 5], 0, 5, [3, 9]), ([6, 7], 0, 2, [1])]
    every = step(served, parts)
    assert every.shape == (7, 61)
    assert_close(step(served, parts, rows=[6, 4]), every[[6, 4]])
    assert step(served, parts, rows=[]).shape == (0, 61)
    assert every.dtype == torch.float32


def test_rewind_and_a_shared_prefix(served):
    first, second = [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 50, 60, 7]
    step(served, [(first, 0, 9, [3, 1, 2])])
    # The first block is read, not computed.
    assert_close(step(served, [(second, 4, 3, [3, 7])]), whole(served, second)[4:])
    changed = [*first[:6], 30, 31]
    assert_close(step(served, [(changed, 6, 2, [3, 1])]), whole(served, changed)[6:])


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_bytes_are_those_allocated(kv_dtype):
    model = PagedDecoder(decoder_of("llama"), kv_dtype=kv_dtype, block_size=8)
    cache = PagedCache(model.decoder.config, 3, 8, kv_dtype)
    parts = [part for store in (cache.keys, cache.values) for part in (store.numbers, store.scales)]
    assert sum(part.nbytes for part in parts if part is not None) == 3 * model.bytes_per_block


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "error"),
    [
        (torch.float32, torch.bfloat16, 5e-6),
        (torch.float32, torch.int8, 5e-5),
        (torch.bfloat16, None, 1e-4),
        (torch.bfloat16, torch.int8, 1e-4),
    ],
)
def test_fewer_bits(dtype, kv_dtype, error):
    model = PagedDecoder(load_decoder(WEIGHTS / "docs-gpt", dtype), kv_dtype=kv_dtype)
    model.allocate(Allocation(num_blocks=8))
    text = torch.randint(2048, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    blocks = [5, 1, 7, 3, 0, 2, 6]
    got = torch.cat([step(model, [(text, 0, 60, blocks)]), step(model, [(text, 60, 40, blocks)])])
    with torch.no_grad():
        wanted = load_decoder(WEIGHTS / "docs-gpt")(torch.tensor([text]))[0]
    relative = (got - wanted).square().mean() / wanted.square().mean()
    assert 0 < relative < error


def test_int8_keeps_each_head_to_half_a_step():
    cache = PagedCache(DecoderConfig(**SMALL), 3, 4, torch.int8)
    x_TKH = torch.randn(5, 2, 8) * torch.tensor([1e-3, 1.0, 0.0, 1e3, 1.0])[:, None, None]
    slots = torch.tensor([4, 11, 5, 0, 9])
    cache.write(1, slots, x_TKH, -x_TKH)
    keys, values = cache.read(1, torch.tensor([1, 0, 2]), torch.float32)
    rows = torch.tensor([0, 11, 1, 4, 9])  # block 1 comes first
    half_a_step = x_TKH.abs().amax(-1, keepdim=True) / 127 / 2
    assert ((keys[rows] - x_TKH).abs() <= half_a_step * 1.001).all()
    torch.testing.assert_close(values, -keys)


def test_limits():
    decoder = decoder_of("llama")
    assert PagedDecoder(decoder).max_model_len == 64
    assert PagedDecoder(decoder, max_model_len=10).max_model_len == 10
    for length in (0, 65):
        with pytest.raises(OptionError, match=f"max_model_len {length} "):
            PagedDecoder(decoder, max_model_len=length)
    with pytest.raises(OptionError, match="float64"):
        PagedDecoder(decoder, kv_dtype=torch.float64)
    with pytest.raises(OptionError, match="not enough memory"):
        PagedDecoder(decoder).allocate(Allocation(num_blocks=2**40))
