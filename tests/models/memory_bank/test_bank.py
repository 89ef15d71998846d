"""The bank of slots against loops written another way, and what is done with its slots."""

import math

import pytest
import torch

from ltm_models import make, random_ids
from whet.errors import OptionError
from whet.models.memory_bank.bank import GATE_SPEED, MemoryBank, new_bank
from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.slots import compressed, kept


def bank_of(**changes) -> tuple[MemoryBank, LtmConfig]:
    model = make(torch.float64, **changes)
    return model.layers[1].bank, model.config


def naive(bank, h_TD, span, slots):
    """One sequence, one token and one slot at a time, float64."""
    C = bank.q_proj.out_features
    contents, weights = torch.zeros(slots, C, dtype=torch.float64), [0.0] * slots
    outputs = []
    for begin in range(0, len(h_TD), span):
        tokens = h_TD[begin : begin + span]
        for h in tokens:
            q = bank.q_norm(bank.q_proj(h))
            scores, values = [torch.tensor(0.0, dtype=torch.float64)], [torch.zeros(C, dtype=torch.float64)]
            for s in range(slots):
                if weights[s]:
                    key = bank.k_norm(contents[s])
                    scores.append(q @ key / math.sqrt(C))
                    values.append(contents[s])
            read = torch.softmax(torch.stack(scores), 0) @ torch.stack(values)
            outputs.append(bank.o_proj(read) * torch.sigmoid(GATE_SPEED * bank.read_gate(h)))
        if len(tokens) < span:
            break
        for s in range(slots):
            place = (torch.arange(span, dtype=torch.float64) + 0.5) / span
            score = bank.pool_proj(tokens) @ bank.slot_queries[s] / math.sqrt(C)
            score = score - bank.slot_sharpness[s].exp() * (place - bank.slot_centres[s]) ** 2
            share = torch.softmax(score, 0)
            z = share @ (bank.value_proj(tokens) * torch.sigmoid(bank.channel_gate(tokens)))
            g = float(torch.sigmoid(GATE_SPEED * (share @ bank.write_gate(tokens)[:, 0] + bank.slot_gates[s])))
            total = (1 - g) * weights[s] + g
            contents[s] = ((1 - g) * weights[s] * contents[s] + g * z) / total  # the mean of what was written
            weights[s] = total
    return torch.stack(outputs), contents, torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("interval", [1, 2])
@torch.no_grad()
def test_reads_and_writes_are_those_of_a_loop(interval):
    bank, config = bank_of(memory_update_interval=interval)
    span = 8 * interval
    h = torch.randn(3, 4 * span + 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = new_bank(config, 3, 6, torch.float64, torch.device("cpu"))
    whole, state = bank(h[:, : 4 * span].unflatten(1, (4, span)), state)
    rest, after = bank(h[:, None, 4 * span :], state, 0, ends=False)
    found = torch.cat((whole.flatten(1, 2), rest[:, 0]), 1)
    for row in range(3):
        outputs, contents, weights = naive(bank, h[row], span, 6)
        torch.testing.assert_close(found[row], outputs, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state.contents_BSC[row], contents, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state.weight_BS[row], weights, rtol=1e-9, atol=1e-9)
    assert torch.equal(after.rows_BSR, state.rows_BSR)


def test_new_slots_differ_and_every_weight_learns():
    config = make().config
    torch.manual_seed(0)
    bank = MemoryBank(config)
    h = torch.randn(2, 5, 8, 32)
    out, state = bank(h, new_bank(config, 2, 6, torch.float32, torch.device("cpu")))
    contents = torch.nn.functional.normalize(state.contents_BSC, dim=-1)
    alike = (contents @ contents.transpose(1, 2)).triu(1).detach()
    assert float(alike.max()) < 0.9
    out.square().sum().backward()
    for name, weight in bank.named_parameters():
        assert float(weight.grad.abs().max()) > 1e-6, name


def test_gradients_reach_back_over_many_segments():
    config = make().config
    torch.manual_seed(0)
    bank = MemoryBank(config)
    h = torch.randn(1, 33, 8, 32, requires_grad=True)
    out, _ = bank(h, new_bank(config, 1, 6, torch.float32, torch.device("cpu")))
    out[:, -1].square().sum().backward()
    first, latest = (float(h.grad[0, place].norm()) for place in (0, 31))
    assert first > 1e-3 * latest
    assert float(h.grad[0, 32].norm()) > 0


@torch.no_grad()
def test_usage_and_age():
    """Age is the mean number of writes since the contents came, by a loop over all writes."""
    bank, config = bank_of()
    h = torch.randn(1, 6, 8, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state, gates = new_bank(config, 1, 6, torch.float64, torch.device("cpu")), []
    for index in range(6):
        before = state.rows_BSR
        _, state = bank(h[:, index : index + 1], state)
        gates.append((1 - (state.weight_BS - 1) / (before[..., -2] - 1))[0])  # 1 - w' = (1 - g)(1 - w)
    for slot in range(6):
        shares = []
        for index in range(6):
            left = math.prod(1 - float(gate[slot]) for gate in gates[index + 1 :])
            shares.append(float(gates[index][slot]) * left)
        age = sum(share * (5 - index) for index, share in enumerate(shares)) / sum(shares)
        assert float(state.ages_BS[0, slot] / state.weight_BS[0, slot]) == pytest.approx(age, rel=1e-6)
    assert 0.1 < float(state.usage_BS.sum()) < 1


def filled(slots=6, rows=2, **changes):
    model = make(memory_slots=slots, min_memory_slots=1, max_memory_slots=12, **changes)
    state = model.new_state(rows)
    model.step(random_ids(rows, 40), state)
    return model, state


def test_what_is_most_used_stays():
    model, state = filled()
    before = [bank.contents_BSC for bank in state.banks]
    usage = [bank.usage_BS for bank in state.banks]
    model.reduce_memory_slots(state, 2)
    for bank, contents, used in zip(state.banks, before, usage, strict=True):
        assert bank.ids_BS.shape == (2, 2)
        for row in range(2):
            best = sorted(used[row].topk(2).indices.tolist())
            assert bank.ids_BS[row].tolist() == best
            assert torch.equal(bank.contents_BSC[row], contents[row, best])
    assert model.step(random_ids(2, 30), state).isfinite().all()


def test_reading_changes_little_where_unused_slots_go():
    """Remove slots that nobody reads: here, those whose contents were cleared."""
    model, state = filled()
    model.evict_memory_slots(state, 3)
    for bank in state.banks:
        assert (bank.weight_BS == 0).sum(-1).tolist() == [3, 3]
    smaller, token = state.clone(), random_ids(2, 1)
    for layer in smaller.layers:
        layer.bank.usage_BS = layer.bank.weight_BS.clone()
        layer.bank = kept(layer.bank, 3)
    torch.testing.assert_close(model.step(token, smaller), model.step(token, state), rtol=1e-5, atol=1e-5)
    assert smaller.num_bytes < state.num_bytes


def test_slots_grow_with_queries_that_are_free():
    model, state = filled()
    model.reduce_memory_slots(state, 3)
    kept_ids = [bank.ids_BS for bank in state.banks]
    token, wanted = random_ids(2, 1), model.step(random_ids(2, 1), state.clone())
    model.grow_memory_slots(state, 8)
    for bank, ids in zip(state.banks, kept_ids, strict=True):
        assert bank.ids_BS.shape == (2, 8)
        assert torch.equal(bank.ids_BS[:, :3], ids)
        assert all(len(set(row)) == 8 for row in bank.ids_BS.tolist())
    torch.testing.assert_close(model.step(token, state.clone()), wanted, rtol=1e-5, atol=1e-5)  # they are empty
    model.step(random_ids(2, 16), state)
    assert all(bool((bank.weight_BS > 0).all()) for bank in state.banks)


@pytest.mark.parametrize("slots", [0, 13])
def test_the_bounds_hold(slots):
    model, state = filled()
    for change in (model.reduce_memory_slots, model.grow_memory_slots):
        with pytest.raises(OptionError, match="not within min_memory_slots 1 and max_memory_slots 12"):
            change(state, slots)
    with pytest.raises(OptionError, match="not within"):
        model.new_state(1, slots=slots)
    without = make(memory_slots=0)
    with pytest.raises(OptionError, match="no bank"):
        without.reduce_memory_slots(without.new_state())


def with_copies(state):
    """Make slots 1 and 4 of every bank equal to slot 0."""
    for bank in state.banks:
        for name, value in vars(bank).items():
            if name != "ids_BS":
                value[:, [1, 4]] = value[:, [0]]
    return state


def test_merging_equal_slots_changes_nothing_that_is_read():
    model, state = filled()
    state = with_copies(state.clone())
    wanted, smaller = model.step(random_ids(2, 1), state.clone()), state.clone()
    model.compress_memory(smaller, 1e-4)
    assert [bank.ids_BS.shape[1] for bank in smaller.banks] == [4, 4]
    torch.testing.assert_close(model.step(random_ids(2, 1), smaller), wanted, rtol=1e-5, atol=1e-5)
    for bank in smaller.banks:
        assert bank.rows_BSR[..., -1].sum(-1).tolist() == [2, 2]  # two were merged into another


@pytest.mark.parametrize("tolerance", [0.05, 0.3, 0.9])
def test_merged_contents_are_within_the_tolerance(tolerance):
    _, state = filled()
    for bank in with_copies(state.clone()).banks:
        bank.rows_BSR[..., :-2] *= 1 + 0.2 * torch.rand(bank.rows_BSR[..., :-2].shape, generator=torch.manual_seed(1))
        small = compressed(bank, tolerance, 1)
        norms = bank.contents_BSC.norm(dim=-1)
        for row in range(2):
            count = int((small.ids_BS[row] >= 0).sum())
            away = torch.cdist(bank.contents_BSC[row], small.contents_BSC[row, :count]).amin(-1)
            assert float((away / norms[row].max()).max()) <= tolerance
            assert count + float(small.rows_BSR[row, :count, -1].sum()) == 6


def test_sequences_shrink_apart():
    """A row without redundancy keeps all its slots, and its results, beside one that shrinks."""
    model, state = filled()
    both = state.clone()
    for bank in both.banks:
        for name, value in vars(bank).items():
            if name != "ids_BS":
                value[0, 1:] = value[0, :1]
    alone = both.rows([1])
    for one in (both, alone):
        model.compress_memory(one, 1e-3)
    assert all((bank.ids_BS >= 0).sum(-1).tolist() == [1, 6] for bank in both.banks)
    ids = random_ids(2, 20)
    torch.testing.assert_close(model.step(ids, both)[1:], model.step(ids[1:], alone), rtol=1e-5, atol=1e-5)
    stats = model.get_memory_stats(both)
    assert stats["slots"] == 3.5
    assert stats["written"] == 1


def test_adaptive_compression_follows_the_text():
    """One token again and again leaves few slots; a text of many tokens keeps more of them."""
    model = make(memory_slots=12, min_memory_slots=2, use_adaptive_compression=True, compression_tolerance=0.2)
    counts = []
    for ids in (torch.full((1, 80), 7), random_ids(1, 80)):
        state = model.new_state()
        model.step(ids, state)
        again = model.new_state()
        for part in ids.split(7, 1):
            model.step(part, again)
        assert [bank.ids_BS.tolist() for bank in again.banks] == [bank.ids_BS.tolist() for bank in state.banks]
        counts.append(model.get_memory_stats(state)["slots"])
    assert counts[0] < 6 < counts[1]


def test_statistics():
    model, state = filled()
    stats = model.get_memory_stats(state)
    assert stats["slots"] == 6
    assert stats["written"] == 1
    assert 0.3 < stats["utilization"] <= 1
    assert 0 < stats["mean_age"] < 4
    assert 0 < stats["bytes"] <= stats["state_bytes"] == state.num_bytes
    assert stats["layers"][0]["usage"].shape == (2, 6)
    assert model.get_memory_stats(model.new_state())["utilization"] == 0
