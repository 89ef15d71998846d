"""The dynamic batcher against the model called with one sample at a time."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import whet
from whet.batching.batcher import DynamicBatcher
from whet.errors import EngineClosed, InputsError, ModelError, OptionError, QueueFull
from whet.technique import Candidate
from whet.workload import Workload, examine

LONG_MS = 60_000.0  # what waits for its time waits for the end of the batcher


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


class Gate:
    """A function that says when it is called, and goes on when it is told to."""

    def __init__(self, function: Callable[..., Any] = lambda x: x * 2) -> None:
        self.entered, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.calls: list[Tensor] = []
        self._function = function

    def __call__(self, *tensors: Tensor) -> Any:
        self.calls.append(tensors[0].clone())
        self.entered.release()
        assert self.go_on.acquire(timeout=30)
        return self._function(*tensors)


@contextmanager
def busy(gate: Gate, **options: Any) -> Iterator[DynamicBatcher]:
    """A batcher whose thread is held inside a call with one sample, so that a test knows who waits."""
    batcher = DynamicBatcher(gate, **{"max_batch": 1, "max_wait_ms": 0.0, **options})
    try:
        batcher.submit(torch.zeros(1))
        assert gate.entered.acquire(timeout=30)
        yield batcher
    finally:
        gate.go_on.release(1000)
        batcher.close()


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


def test_from_many_threads() -> None:
    found: dict[int, list[float]] = {}

    def client(number: int, batcher: DynamicBatcher) -> None:
        values = [batcher.submit(torch.full((1 + number % 3,), float(number * 100 + i))) for i in range(40)]
        found[number] = [future.result(30)[0].item() for future in values]

    with DynamicBatcher(lambda x: x + 0.5, max_batch=7, max_wait_ms=1.0, cut=True) as batcher:
        threads = [threading.Thread(target=client, args=(number, batcher)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == {number: [number * 100 + i + 0.5 for i in range(40)] for number in range(8)}
    assert batcher.stats().num_samples == 320


def test_from_coroutines() -> None:
    async def ask(batcher: DynamicBatcher) -> list[float]:
        answers = await asyncio.gather(*(batcher(torch.tensor([float(i)])) for i in range(9)))
        return [answer.item() for answer in answers]

    with DynamicBatcher(lambda x: x * x, max_batch=4, max_wait_ms=1.0) as batcher:
        assert asyncio.run(ask(batcher)) == [i * i for i in range(9)]


def test_a_coroutine_that_is_cancelled_takes_its_sample_back() -> None:
    gate = Gate()

    async def give_up(batcher: DynamicBatcher) -> None:
        task = asyncio.create_task(batcher(torch.zeros(1)))
        while not batcher.stats().num_waiting:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with busy(gate) as batcher:
        asyncio.run(give_up(batcher))
        assert (batcher.stats().num_waiting, batcher.stats().num_cancelled) == (0, 1)
    assert len(gate.calls) == 1


def test_a_future_that_its_caller_resolves_holds_up_nobody() -> None:
    gate = Gate()
    with busy(gate) as batcher:
        given_up = batcher.submit(torch.ones(1))
        other = batcher.submit(torch.full((1,), 3.0))
        given_up.set_result(None)
        gate.go_on.release(2)
        assert other.result(30).item() == 6
    assert (given_up.result(0), batcher.stats().num_waiting) == (None, 0)


def test_cancelled_samples_are_not_run_and_make_room() -> None:
    gate = Gate()
    with busy(gate, max_waiting=2) as batcher:
        running = batcher.submit(torch.ones(1))
        other = batcher.submit(torch.ones(1))
        with pytest.raises(QueueFull, match="2 samples wait already"):
            batcher.submit(torch.ones(1))
        assert other.cancel()
        third = batcher.submit(torch.full((1,), 3.0))
        gate.go_on.release(2)
        assert running.result(30).item() == 2
        assert not running.cancel()
        gate.go_on.release()
        assert third.result(30).item() == 6
    assert len(gate.calls) == 3
    assert (batcher.stats().num_refused, batcher.stats().num_cancelled) == (1, 1)


def test_an_error_reaches_the_samples_of_its_batch_alone() -> None:
    def function(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ArithmeticError("negative")
        return x.sqrt()

    gate = Gate(function)
    with busy(gate, max_batch=2) as batcher:
        values = [1.0, 4.0, -1.0, 9.0, 16.0, 25.0]
        futures = [batcher.submit(torch.tensor([value])) for value in values]
        gate.go_on.release(4)
        assert [futures[i].result(30).item() for i in (0, 1, 4, 5)] == [1, 2, 4, 5]
        for i in (2, 3):
            with pytest.raises(ArithmeticError, match="negative"):
                futures[i].result(30)
    assert batcher.stats().num_failed == 2


def test_the_thread_survives_whatever_a_function_raises() -> None:
    def leaves(x: Tensor) -> Tensor:
        raise SystemExit(3)

    with DynamicBatcher(leaves, max_batch=1) as batcher:
        for _ in range(2):
            with pytest.raises(SystemExit):
                batcher.submit(torch.zeros(1)).result(30)


def test_a_sample_of_another_kind_is_kept_apart_or_refused() -> None:
    gate = Gate()
    with busy(gate, max_batch=4) as batcher:
        good = [batcher.submit(torch.ones(1)) for _ in range(2)]
        odd = [batcher.submit(torch.ones(1, dtype=torch.long)), batcher.submit(torch.ones(1, 2))]
        gate.go_on.release(4)
        assert [future.result(30).item() for future in good] == [2, 2]
        assert [list(future.result(30).shape) for future in odd] == [[1], [1, 2]]
    assert [list(call.shape) for call in gate.calls] == [[1, 1], [2, 1], [1, 1], [1, 1, 2]]
    with DynamicBatcher(lambda x: x, example=torch.zeros(4, 2)) as batcher:
        fits = batcher.submit(torch.zeros(4, 2))
        for sample in (torch.zeros(4, 2).double(), torch.zeros(4), torch.zeros(4, 3), {"x": torch.zeros(4, 2)}):
            with pytest.raises(InputsError, match=r"the example was \(float32\[4, 2\]\)"):
                batcher.submit(sample)
        assert fits.result(30).shape == (4, 2)


@pytest.mark.parametrize("sample", [None, 3, "text", (), {}, (torch.zeros(1), 2), {"x": [1.0]}])
def test_what_is_no_sample(sample: Any) -> None:
    with DynamicBatcher(lambda x: x) as batcher, pytest.raises(InputsError):
        batcher.submit(sample)


def test_lengths_that_differ_need_a_word_on_the_outputs() -> None:
    with DynamicBatcher(lambda x: x) as batcher:
        batcher.submit(torch.zeros(3))
        batcher.submit(torch.zeros(3))
        with pytest.raises(OptionError, match="cut=True or cut=False"):
            batcher.submit(torch.zeros(4))
    with DynamicBatcher(lambda x: x, buckets=(4, 8)) as batcher:
        batcher.submit(torch.zeros(4))
        with pytest.raises(OptionError, match="cut=True or cut=False"):
            batcher.submit(torch.zeros(3))
        with pytest.raises(InputsError, match="length 9 is beyond the largest bucket, 8"):
            batcher.submit(torch.zeros(9))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.sum(), r"the model returns \[\] for 2 samples"),
        (lambda x: x[:1], r"the model returns \[1, 3\] for 2 samples"),
        (lambda x: {"a": (x, x.T)}, r"the model returns \[3, 2\] at a.1 for 2 samples"),
        (lambda x: object(), "returns an object, which cannot be split"),
        (lambda x: x[:, :2], r"\[2, 2\] for samples padded to 3: dimension 1 is not their length"),
    ],
)
def test_outputs_that_cannot_be_split(function: Callable[[Tensor], Any], said: str) -> None:
    with DynamicBatcher(function, max_batch=2, max_wait_ms=LONG_MS, cut=True) as batcher:
        futures = [batcher.submit(torch.zeros(length)) for length in (3, 2)]
        for future in futures:
            with pytest.raises(ModelError, match=said):
                future.result(30)


def test_closing_drains_or_cancels_and_ends_the_thread() -> None:
    before = threading.active_count()
    drained = DynamicBatcher(lambda x: x + 1, max_batch=8, max_wait_ms=LONG_MS)
    futures = [drained.submit(torch.zeros(1)) for _ in range(11)]
    drained.close()
    drained.close()
    assert [future.result(0).item() for future in futures] == [1] * 11
    with pytest.raises(EngineClosed):
        drained.submit(torch.zeros(1))
    dropped = DynamicBatcher(lambda x: x, max_batch=8, max_wait_ms=LONG_MS)
    future = dropped.submit(torch.zeros(1))
    dropped.close(drain=False)
    with pytest.raises(CancelledError):
        future.result(0)
    assert dropped.stats().num_cancelled == 1
    assert threading.active_count() == before


def test_a_function_may_close_its_own_batcher() -> None:
    batcher = DynamicBatcher(lambda x: (batcher.close(), x)[1], max_batch=1)
    assert batcher.submit(torch.ones(1)).result(30).item() == 1
    batcher.close()


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch": 0},
        {"max_wait_ms": -1.0},
        {"max_wait_ms": float("nan")},
        {"max_wait_ms": float("inf")},
        {"max_waiting": 0},
        {"buckets": (8, 4)},
        {"buckets": (0, 4)},
        {"batch_sizes": ()},
        {"batch_sizes": (4,), "max_batch": 5},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    before = threading.active_count()
    with pytest.raises(OptionError):
        DynamicBatcher(lambda x: x, **options)
    assert threading.active_count() == before


def test_a_module_in_training_mode() -> None:
    with pytest.raises(OptionError, match=r"call \.eval\(\)"):
        DynamicBatcher(nn.BatchNorm1d(3))


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
        with pytest.raises(OptionError, match="max_batch 5 is beyond the largest batch that the model takes, 4"):
            DynamicBatcher(whet.load(tmp_path / "model"), max_batch=5)


def test_the_samples_of_a_request_are_queued_together_or_not_at_all() -> None:
    gate, begun = threading.Event(), threading.Event()

    def held(x: Tensor) -> Tensor:
        begun.set()
        assert gate.wait(10)
        return x * 2

    with DynamicBatcher(held, max_wait_ms=0, max_waiting=3) as batcher:
        first = batcher.submit_all([torch.ones(1)])
        assert begun.wait(10)
        waiting = batcher.submit_all([torch.full((1,), 2.0), torch.full((1,), 3.0)])
        with pytest.raises(QueueFull, match="2 samples wait already"):
            batcher.submit_all([torch.ones(1)] * 2)
        assert batcher.stats().num_waiting == 2
        cancelled = batcher.submit_all([torch.ones(1)])
        assert cancelled.cancel()
        assert batcher.stats().num_waiting == 2
        gate.set()
        assert [y.item() for y in first.result(10) + waiting.result(10)] == [2, 4, 6]
        assert batcher.submit_all([]).result(10) == []


def test_a_sample_that_the_function_does_not_take_fails_alone() -> None:
    gate, sizes = threading.Event(), []

    def picky(x: Tensor) -> Tensor:
        assert gate.wait(10)
        sizes.append(len(x))
        if bool((x > 5).any()):
            raise ValueError("too large")
        return x * 2

    with DynamicBatcher(picky, max_wait_ms=50, retry_alone=True) as batcher:
        futures = [batcher.submit(torch.tensor([float(i)])) for i in (1, 9, 2)]
        gate.set()
        assert [futures[i].result(10).item() for i in (0, 2)] == [2, 4]
        with pytest.raises(ValueError, match="too large"):
            futures[1].result(10)
        assert sizes == [3, 1, 1, 1]
        assert batcher.stats().num_failed == 1


def test_a_request_fails_with_its_first_sample_and_the_others_are_taken_back() -> None:
    def picky(x: Tensor) -> Tensor:
        if bool((x > 5).any()):
            raise ValueError("too large")
        return x * 2

    with DynamicBatcher(picky, max_batch=1, max_wait_ms=0) as batcher, pytest.raises(ValueError, match="too large"):
        batcher.submit_all([torch.tensor([float(i)]) for i in (9, 1, 2)]).result(10)
