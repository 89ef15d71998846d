"""The models and the sums of benchmarks/recall.py and benchmarks/memory_table.py: controls, equal arms, exponents."""

import importlib
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("recall_models", "recall_training", "recall_tables", "memory_points", "memory_table")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the scripts' modules, as attributes of one. They import each other as scripts do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = ModuleType("bench")
    for name in MODULES:
        setattr(found, name, importlib.import_module(name))
    return found


@pytest.mark.parametrize("arm", ["none", "bank", "test-time", "full attention"])
def test_only_without_a_memory_the_first_segment_changes_nothing_later(bench: ModuleType, arm: str) -> None:
    models = bench.recall_models
    shape = models.Shape(vocab_size=64, segment=8, longest=32)
    model = models.build(arm, shape, 0).eval()
    tokens_BT = torch.randint(0, 64, (3, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert model.ignores_the_first_segment(tokens_BT) == (arm == "none")
        where_BT = torch.zeros(3, 32, dtype=torch.bool)
        where_BT[:, 25:28] = True
        plain = model.logits_at(tokens_BT, where_BT)
        torch.testing.assert_close(plain, model.model(tokens_BT)[where_BT])
        others = model.logits_with_the_memory_of_others(tokens_BT, where_BT)
        mixed_BT = torch.cat((tokens_BT.roll(1, 0)[:, :24], tokens_BT[:, 24:]), 1)  # what it amounts to
        torch.testing.assert_close(others, model.logits_at(mixed_BT, where_BT))
        assert torch.allclose(plain, others) == (arm == "none")
        where_BT[0, 3] = True
        with pytest.raises(ValueError, match="before the last segment"):
            model.logits_with_the_memory_of_others(tokens_BT, where_BT)


def test_all_arms_have_as_many_parameters(bench: ModuleType) -> None:
    models = bench.recall_models
    for vocab_size in (256, 512):
        shape = models.Shape(vocab_size, segment=32, longest=64)
        sizes = [models.num_parameters(models.build(arm, shape, 0)) for arm in models.ARMS if arm != models.TITANS]
        assert max(sizes) < 1.01 * min(sizes)


def test_a_run_says_what_it_answered(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    training = bench.recall_training
    monkeypatch.setattr(training, "TEST_TOKENS", 2**9)
    monkeypatch.setattr(training, "CHOICE_TOKENS", 2**10)
    found = training.train_and_test(training.Run("copy", "none", 0, 1e-3, 8192))
    again = training.train_and_test(training.Run("copy", "none", 0, 1e-3, 8192))
    assert found | {"seconds": 0} == again | {"seconds": 0}  # the same seed, the same model
    assert found["ignores_the_first_segment"]
    assert set(found["tests"]) == set(training.TASKS["copy"].tests)
    for test in (*found["tests"].values(), found["shuffled"]):
        assert test["answers"] == 12 * test["rows"] and test["right"] <= test["answers"]


def test_naive_attention_is_attention_and_blocks_have_the_same_gradients(bench: ModuleType) -> None:
    points = bench.memory_points
    tokens_BT = torch.randint(0, points.VOCABULARY, (1, 1024), generator=torch.Generator().manual_seed(2))
    for one, other in ((points.NAIVE, points.SDPA), (points.BANK, points.BLOCKS)):
        first, second = points.built(one, 1024), points.built(other, 1024)
        for model, arm in ((first, one), (second, other)):
            points.train(model, arm, tokens_BT)
        for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
            assert a.grad is not None and b.grad is not None, name
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-7)
    sizes = [points.num_parameters(points.built(arm, 512)) for arm in points.ARMS]
    assert max(sizes) < 1.01 * min(sizes)


def test_the_exponent_of_a_power_law_is_found_and_of_other_laws_uncertain(bench: ModuleType) -> None:
    law = bench.memory_table.power_law
    exact, (low, high) = law({n: {"every": [3 * n**1.5] * 3} for n in (2048, 4096, 8192, 16384)})
    assert exact == pytest.approx(1.5) == pytest.approx(low) == pytest.approx(high)
    mixed, (low, high) = law({n: {"every": [1e6 + n**2]} for n in (256, 1024, 4096, 16384)})
    assert 0 < mixed < 2 and low < mixed < high and high - low > 0.2
    assert math.isnan(law({2048: {"every": [1.0]}})[0])


def test_a_claim_holds_where_its_ratio_is_reached(bench: ModuleType) -> None:
    table = bench.memory_table

    def row(arm: str, *megabytes: float) -> dict[str, Any]:
        lengths = ("2048", "8192", "32768")
        points = {length: {"bytes": 1e6 * size} for length, size in zip(lengths, megabytes, strict=True)}
        return {"arm": arm, "mode": "training", "points": points, "exponent": 1.0, "exponent_ci95": [0.9, 1.1]}

    rows = [row(table.NAIVE, 4, 64, 1024), row(table.SDPA, 2, 8, 32), row("window and bank", 2, 5, 8)]
    found = table.claims(rows)
    assert [(claim["over"], claim["holds"]) for claim in found] == [
        (table.NAIVE, [True, False, True]),
        (table.SDPA, [False, False, False]),
    ]
    assert found[0]["ratios"] == [2, 12.8, 128]


def test_the_tables_show_what_was_found(bench: ModuleType) -> None:
    tables = bench.recall_tables
    test = {"right": 50, "answers": 100, "whole": 3, "rows": 10}
    run = {"task": "recall", "lr": 0.001, "parameters": 1000, "tokens_read": 2e6, "shuffled": test}
    runs = [
        {**run, "arm": arm, "tests": {"distance 16": test}, "ignores_the_first_segment": arm == "none"}
        for arm in ("none", "bank")
    ]
    task = {"chance": 0.5, "says": "a coin"}
    report = {"tokens": 3e6, "absent": ["titans-pytorch"], "tasks": {"recall": task}, "runs": runs}
    text = "\n".join(tables.recall_lines(json.loads(json.dumps(report))))
    assert "| bank | 50.0% (40.4%–59.6%) | 50.0% (40.4%–59.6%) | 0.001 | 2.0 million |" in text  # Wilson's interval
    assert "none: not above chance. Another first segment changes no bit" in text
    assert "not installed: titans-pytorch" in text
    assert tables.remembered_at(report, [16, 8])["bank"] == {"16": "50.0% (40.4%–59.6%)", "8": "not measured"}
    assert tables.remembered_at(None, [16]) == {}
