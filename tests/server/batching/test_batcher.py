"""The dynamic batcher against the model called with one sample at a time."""

from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from held_batcher import LONG_MS, Gate, busy
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import whet
from whet.core.workload import Workload, examine
from whet.errors import InputsError, OptionError
from whet.server.batching.batcher import DynamicBatcher
from whet.techniques.technique import Candidate


class Recurrent(nn.Module):
    """Reads to each sample's own end: without lengths, padding would change what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 6)
        self.read = nn.LSTM(6, 5, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> dict[str, Tensor]:
        states, _ = self.read(self.embed(ids))
        last = lengths - 1 if lengths is not None else torch.full((len(ids),), ids.shape[1] - 1)
        return {"states": states, "last": states[torch.arange(len(ids)), last]}


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=20),
    options=st.fixed_dictionaries(
        {
            "max_batch": st.integers(1, 6),
            "max_wait_ms": st.sampled_from([0.0, 1.0, LONG_MS]),
            "sort_by_length": st.booleans(),
            "buckets": st.sampled_from([None, (4, 8, 12), (16,)]),
            "batch_sizes": st.sampled_from([None, (6,), (2, 4, 6)]),
        }
    ),
)
def test_results_are_those_of_the_model_one_at_a_time(lengths: list[int], options: dict[str, Any]) -> None:
    model = Recurrent().eval()
    samples = [torch.randint(50, (length,)) for length in lengths]
    with DynamicBatcher(model, **options, lengths="lengths", cut=("states",)) as batcher:
        futures = [batcher.submit(sample) for sample in samples]
    for sample, future in zip(samples, futures, strict=True):
        with torch.no_grad():
            expected = model(sample[None])
        found = future.result(timeout=0)
        assert found["states"].shape == (len(sample), 5)
        assert not found["states"].requires_grad
        torch.testing.assert_close(found["states"], expected["states"][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.last, expected["last"][0], rtol=1e-5, atol=1e-6)
    stats = batcher.stats()
    assert stats.num_samples == sum(size * count for size, count in stats.batch_sizes.items()) == len(samples)
    assert max(stats.batch_sizes) <= options["max_batch"]
    if options["max_wait_ms"] == LONG_MS:  # nothing ran early: full batches, and the rest at the end
        assert stats.num_batches == -(-len(samples) // options["max_batch"])
    assert (stats.num_waiting, stats.num_failed, stats.num_cancelled) == (0, 0, 0)


def test_a_mask_and_several_inputs_by_name_padded_each_with_its_own_value() -> None:
    seen: list[dict[str, Tensor]] = []

    def function(**tensors: Tensor) -> Tensor:
        seen.append(tensors)
        return (tensors["ids"] * tensors["real"]).sum(1)

    options = {"max_batch": 2, "max_wait_ms": LONG_MS, "cut": False, "mask": "real", "lengths": "n"}
    with DynamicBatcher(function, pad_value={"ids": 9, "types": -1}, **options) as batcher:
        short = batcher.submit({"ids": torch.tensor([1]), "types": torch.tensor([3]), "scale": torch.tensor(0.5)})
        long = {"scale": torch.tensor(0.25), "types": torch.tensor([4, 5, 6]), "ids": torch.tensor([5, 6, 7])}
        assert batcher.submit(long).result(30) == 18
        assert short.result(30) == 1
    (call,) = seen
    assert call["ids"].tolist() == [[5, 6, 7], [1, 9, 9]]
    assert call["types"].tolist() == [[4, 5, 6], [3, -1, -1]]
    assert call["scale"].tolist() == [0.25, 0.5]
    assert call["real"].tolist() == [[True, True, True], [True, False, False]]
    assert call["n"].tolist() == [3, 1]
    assert batcher.stats().padding == pytest.approx(4 / 14)


def test_any_dimension_and_inputs_by_position() -> None:
    def function(image: Tensor, scale: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        return image * scale[:, None, None], [image.amax((1, 2)), None]

    images = [torch.rand(3, width) for width in (2, 5, 4)]
    with DynamicBatcher(function, max_batch=3, max_wait_ms=LONG_MS, length_dim=1, cut=[0]) as batcher:
        futures = [batcher.submit((image, torch.tensor(2.0))) for image in images]
        for image, future in zip(images, futures, strict=True):
            scaled, (largest, nothing) = future.result(30)
            assert torch.equal(scaled, image * 2)
            assert torch.equal(largest, image.max())
            assert nothing is None
    assert batcher.stats().batch_sizes == {3: 1}


def test_samples_that_arrive_together_run_together() -> None:
    gate = Gate()
    with busy(gate, max_batch=4) as batcher:
        futures = [batcher.submit(torch.tensor([float(i)])) for i in range(6)]
        gate.go_on.release(3)
        assert [future.result(30).item() for future in futures] == [0, 2, 4, 6, 8, 10]
    assert [len(call) for call in gate.calls] == [1, 4, 2]
    assert batcher.stats().batch_sizes == {1: 1, 2: 1, 4: 1}


def test_a_full_batch_does_not_wait_and_a_lone_sample_only_so_long() -> None:
    with DynamicBatcher(lambda x: x + 1, max_batch=3, max_wait_ms=LONG_MS) as batcher:
        futures = [batcher.submit(torch.zeros(2)) for _ in range(3)]
        assert not wait(futures, timeout=30).not_done
        lone = batcher.submit(torch.zeros(2))
    assert lone.done()  # the end does not leave it behind
    with DynamicBatcher(lambda x: x + 1, max_batch=3, max_wait_ms=5.0) as batcher:
        assert batcher.submit(torch.zeros(2)).result(30).tolist() == [1, 1]
        assert batcher.stats().longest_wait_ms >= 5.0


def test_a_result_is_a_copy() -> None:
    kept = torch.zeros(1, 3)

    def overwrites(x: Tensor) -> Tensor:
        return kept.copy_(x)

    with DynamicBatcher(overwrites, max_batch=1) as batcher:
        first = batcher.submit(torch.ones(3)).result(30)
        batcher.submit(torch.full((3,), 2.0)).result(30)
    assert first.tolist() == [1, 1, 1]
    assert first.untyped_storage().nbytes() == 12


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layers(features)}


@pytest.mark.parametrize("is_fixed", [True, False])
def test_a_loaded_artefact(tmp_path: Path, is_fixed: bool) -> None:
    model = Classifier().eval()
    batches = [{"features": torch.rand(size, 6)} for size in ((4, 4) if is_fixed else (4, 7))]
    Candidate.original(examine(Workload(model=model, inputs=batches))).save(tmp_path / "model")
    samples = torch.rand(9, 6)
    with DynamicBatcher(whet.load(tmp_path / "model"), max_wait_ms=LONG_MS) as batcher:
        futures = [batcher.submit({"features": sample}) for sample in samples]
        for sample in (torch.rand(6), {"features": torch.rand(7)}, {"features": torch.rand(6).double()}, {}):
            with pytest.raises(InputsError, match=r"the model takes batches of|holds no tensor"):
                batcher.submit(sample)
    found = torch.stack([future.result(0)["logits"] for future in futures])
    torch.testing.assert_close(found, model(samples)["logits"].detach())
    assert batcher.stats().batch_sizes == ({1: 1, 4: 2} if is_fixed else {9: 1})
    if is_fixed:
        with pytest.raises(OptionError, match="max_batch 5 is above the largest batch that the model takes, 4"):
            DynamicBatcher(whet.load(tmp_path / "model"), max_batch=5)
