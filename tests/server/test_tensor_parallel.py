"""One model on several processes: tokens are those of one process, and where a process ends, everybody is told."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from whet.errors import EngineClosed, OptionError, RanksError, TargetError
from whet.kernels.build import Isa, library, supported
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.files import weight_shapes
from whet.models.decoder.fresh import file_name
from whet.models.decoder.share import Share
from whet.models.families import open_model
from whet.models.hybrid.native_share import StepBounds
from whet.models.options import ServingOptions
from whet.models.step import Allocation, ServedModel, StepBatch
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.output_constraint import OutputConstraint
from whet.server.sampling_params import SamplingParams
from whet.server.tensor_parallel.divided_model import DividedModel
from whet.server.tensor_parallel.processes import Processes
from whet.server.tensor_parallel.shares import Given, cores_of_ranks, threads_on
from whet.workloads import WEIGHTS

BOUNDS = StepBounds(num_tokens=512, num_seqs=8, timeout_s=60.0)
NUM_BLOCKS = 40
SIZES = {
    "vocab_size": 211,
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": 19},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 48},
}


def saved(directory: Path, family: str, **changes: Any) -> Path:
    """A directory with a small model of a family, whose weights are random."""
    raw = {**SIZES, **FAMILIES[family], **changes}
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in weight_shapes(DecoderConfig.model_validate(raw)).items():
        spread = 1.0 if len(shape) == 1 else 1.5 / math.sqrt(shape[-1])
        weight = torch.randn(shape, generator=generator) * spread
        weights[file_name(name)] = 1 + 0.2 * weight if "norm" in name else weight
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(weights, directory / "model.safetensors")
    return directory


@contextmanager
def divided(directory: Path, num_ranks: int, bounds: StepBounds = BOUNDS, **options: Any) -> Iterator[DividedModel]:
    cores, num_threads = os.sched_getaffinity(0), torch.get_num_threads()
    model = DividedModel(directory, ServingOptions(**options), num_ranks, bounds)
    try:
        model.allocate(Allocation(num_blocks=NUM_BLOCKS))
        yield model
    finally:
        os.sched_setaffinity(0, cores)  # a step binds the thread that calls it
        torch.set_num_threads(num_threads)
        model.close()


def step(model: ServedModel, parts: Sequence[tuple[int, int, int]]) -> Tensor:
    """One step of some sequences, each (its number, start, end): the logits of all their tokens."""
    news = [end - start for _, start, end in parts]
    starts = np.concatenate([[0], np.cumsum(news)]).astype(np.int32)
    ids = [(np.arange(start, end) * 37 + 11 * number + 5) % 200 for number, start, end in parts]
    ends = np.array([end for *_, end in parts], np.int32)
    batch = StepBatch(
        token_ids=np.concatenate(ids).astype(np.int32),
        positions=np.concatenate([np.arange(start, end) for _, start, end in parts]).astype(np.int32),
        query_start=starts,
        context_len=ends,
        settled_len=ends,
        block_tables=np.array([np.arange(20) + 20 * number for number, *_ in parts], np.int32),
        state_rows=np.zeros(len(parts), np.int32),
        logit_rows=np.arange(starts[-1], dtype=np.int32),
    )
    with torch.inference_mode():
        return model.step(batch).clone()


STEPS = ([(0, 0, 230), (1, 0, 7)], [(0, 230, 231), (1, 7, 8)], [(1, 8, 12)])


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(
    ("family", "num_ranks"),
    [
        pytest.param("llama", 2, marks=pytest.mark.slow),
        pytest.param("llama", 4, marks=pytest.mark.slow),
        pytest.param("mistral", 2, marks=pytest.mark.slow),
        pytest.param("qwen2", 2, marks=pytest.mark.slow),
        pytest.param("qwen3", 4, marks=pytest.mark.slow),
    ],
)
def test_logits_are_those_of_one_process(tmp_path: Path, family: str, num_ranks: int) -> None:
    directory = saved(tmp_path, family)
    whole = open_model(directory, dtype="fp32")
    whole.allocate(Allocation(num_blocks=NUM_BLOCKS))
    with divided(directory, num_ranks, dtype="fp32") as model:
        assert model.bytes_per_block == whole.bytes_per_block
        for parts in STEPS:
            assert relative(step(model, parts), step(whole, parts)) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"dtype": "bf16"}, 0.01),
        ({"weights": "int8", "kv": "int8"}, 0.03),
        ({"weights": "int4"}, 0.06),
    ],
)
def test_formats_of_fewer_bits_are_as_close_to_float32_as_one_process(
    tmp_path: Path, options: dict[str, Any], most: float
) -> None:
    directory = saved(tmp_path, "llama")
    exact, whole = open_model(directory, dtype="fp32"), open_model(directory, **options)
    exact.allocate(Allocation(num_blocks=NUM_BLOCKS))
    whole.allocate(Allocation(num_blocks=NUM_BLOCKS))
    with divided(directory, 2, **options) as model:
        for parts in STEPS:
            wanted = step(exact, parts)
            of_one, of_two = relative(step(whole, parts), wanted), relative(step(model, parts), wanted)
            assert of_two < max(most, 1.5 * of_one)


@pytest.mark.slow
@pytest.mark.parametrize("isa", supported()[1:])
@pytest.mark.parametrize("options", [{"dtype": "fp32"}, {"dtype": "fp32", "weights": "int8", "kv": "int8"}])
def test_processes_of_slower_instruction_sets_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isa: Isa, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("WHET_KERNELS", isa)  # for the other process
    for module in ("whet.models.families", "whet.server.tensor_parallel.divided_model"):
        monkeypatch.setattr(f"{module}.library", lambda: library(isa))
    directory = saved(tmp_path, "llama")
    exact, whole = open_model(directory, dtype="fp32"), open_model(directory, **options)
    exact.allocate(Allocation(num_blocks=NUM_BLOCKS))
    whole.allocate(Allocation(num_blocks=NUM_BLOCKS))
    with divided(directory, 2, **options) as model:
        for parts in STEPS:
            wanted = step(exact, parts)
            of_one, of_two = relative(step(whole, parts), wanted), relative(step(model, parts), wanted)
            assert of_two < (2e-6 if "weights" not in options else max(0.03, 1.5 * of_one))


def prompts() -> list[list[int]]:
    draw = np.random.default_rng(3)
    beginning = draw.integers(0, 2000, 40).tolist()
    return [
        draw.integers(0, 2000, 1).tolist(),
        draw.integers(0, 2000, 130).tolist(),
        *(beginning + draw.integers(0, 2000, n).tolist() for n in (1, 9, 20)),
    ]


def outputs(options: EngineOptions, params: SamplingParams, draft: Path | None = None) -> tuple[list[Any], Any]:
    with Engine(WEIGHTS / "docs-gpt", options, draft=draft) as engine:
        first = engine.generate(prompts()[2], params)
        rest = engine.generate(prompts(), params)
        masked = engine.generate("A class", dataclasses.replace(params, structure=STRUCTURE))
        return [first, *rest, masked], engine.stats()


STRUCTURE = OutputConstraint.regex("( [a-z]{2,6}){3} [0-9]{40}")
GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=3, ignore_eos=True)


def test_tokens_are_those_of_one_process_with_cached_prefixes_and_preemption() -> None:
    one = EngineOptions(dtype="fp32", memory=14 * 40_960, max_model_len=192, speculation="ngram")
    wanted, alone = outputs(one, GREEDY)
    found, stats = outputs(dataclasses.replace(one, tensor_parallel_size=2), GREEDY)
    assert [completion.token_ids for completion in found] == [completion.token_ids for completion in wanted]
    for seen in (alone, stats):
        assert min(seen.prefix_cache_hits, seen.num_preemptions, seen.num_draft_tokens) > 0
    for mine, theirs in zip(found, wanted, strict=True):
        for a, b in zip(mine.logprobs or [], theirs.logprobs or [], strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"dtype": "bf16"}, {"weights": "int8"}])
def test_greedy_tokens_differ_only_where_two_are_nearly_as_likely(options: dict[str, Any]) -> None:
    one = EngineOptions(speculation="off", **options)
    wanted, _ = outputs(one, GREEDY)
    found, _ = outputs(dataclasses.replace(one, tensor_parallel_size=2), GREEDY)
    num_equal = 0
    for mine, theirs in zip(found, wanted, strict=True):
        equal = [a == b for a, b in zip(mine.token_ids, theirs.token_ids, strict=False)]
        first = equal.index(False) if False in equal else len(equal)
        num_equal += first
        if first < len(equal):
            top = theirs.logprobs[first].top
            likely = dict(top)
            assert likely[theirs.token_ids[first]] - likely[mine.token_ids[first]] < 0.2
    assert num_equal >= 0.5 * 24 * len(wanted)


@pytest.mark.slow
def test_a_draft_model_and_a_seed() -> None:
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=24, ignore_eos=True)
    one = EngineOptions(dtype="fp32")
    wanted, _ = outputs(one, params)
    found, stats = outputs(dataclasses.replace(one, tensor_parallel_size=2), params, WEIGHTS / "docs-gpt")
    assert [completion.token_ids for completion in found] == [completion.token_ids for completion in wanted]
    assert stats.num_accepted_tokens > 0


def test_a_process_that_is_killed_ends_all_requests_with_one_clear_error() -> None:
    options = EngineOptions(tensor_parallel_size=2, dtype="fp32")
    told: list[str] = []
    with Engine(WEIGHTS / "docs-gpt", options) as engine:
        engine.when_broken(told.append)
        endless = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        streams = [engine.stream([1, 2, number], endless) for number in range(3)]
        first = [next(stream) for stream in streams]
        assert all(delta.token_ids for delta in first)
        assert isinstance(engine.model, DividedModel)
        [pid] = engine.model.pids
        os.kill(pid, signal.SIGKILL)
        last = [list(stream)[-1] for stream in streams]
        message = f"rank 1 of the 2 processes that compute the model together (process {pid}) was ended by SIGKILL"
        assert all(delta.finish_reason == "error" and message in (delta.error or "") for delta in last)
        assert [message in one for one in told] == [True]
        assert not engine.is_open
        with pytest.raises(EngineClosed, match="was ended by SIGKILL"):
            engine.generate([1, 2, 3])


@pytest.mark.slow
def test_a_process_that_does_not_answer_has_failed(tmp_path: Path) -> None:
    with divided(saved(tmp_path, "llama"), 2, BOUNDS._replace(timeout_s=0.5), dtype="fp32") as model:
        step(model, STEPS[0])
        [pid] = model.pids
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(RanksError, match=rf"process {pid}\) has not answered for 0.5 s"):
                step(model, STEPS[1])
            with pytest.raises(RanksError, match="has not answered"):
                step(model, STEPS[1])
        finally:
            os.kill(pid, signal.SIGCONT)


_HOLDS_A_MODEL = """
import sys, time, whet
engine = whet.Engine(sys.argv[1], whet.EngineOptions(tensor_parallel_size=2, dtype="fp32"))
print(*engine.model.pids, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_the_others_end_when_the_first_process_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _HOLDS_A_MODEL, str(saved(tmp_path, "llama"))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        [other] = [psutil.Process(int(pid)) for pid in holder.stdout.readline().split()]
        holder.kill()
    other.wait(timeout=20)


@pytest.mark.slow
def test_no_process_stays_after_close(tmp_path: Path) -> None:
    with divided(saved(tmp_path, "llama"), 2) as model:
        others = [psutil.Process(pid) for pid in model.pids]
    assert not any(other.is_running() for other in others)


def without_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(subprocess, "Popen", fail)


@pytest.mark.parametrize(
    ("changes", "num_ranks", "why"),
    [
        ({"num_key_value_heads": 2}, 4, "num_key_value_heads is 2, which is not a multiple of 4"),
        ({}, 3, "num_attention_heads is 8, which is not a multiple of 3"),
        ({"intermediate_size": 105}, 2, "intermediate_size is 105, which is not a multiple of 2"),
        ({"head_dim": 8}, 2, "needs whet's own kernels: head_dim is 8"),
    ],
)
def test_a_model_that_cannot_be_divided_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], num_ranks: int, why: str
) -> None:
    directory = saved(tmp_path, "llama", **changes)
    without_starting(monkeypatch)
    with pytest.raises(OptionError, match=f"tensor_parallel_size={num_ranks}.*{why}"):
        Engine(directory, EngineOptions(tensor_parallel_size=num_ranks))


def test_other_families_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    without_starting(monkeypatch)
    with pytest.raises(OptionError, match=r"models of the family \w+ cannot be divided; those of llama, mistral"):
        Engine(WEIGHTS / "docs-ssm", EngineOptions(tensor_parallel_size=2))


@pytest.mark.parametrize("size", [0, -1, 65, 2.0])
def test_a_size_that_is_none(size: Any) -> None:
    with pytest.raises(OptionError, match="tensor_parallel_size="):
        EngineOptions(tensor_parallel_size=size)


@pytest.mark.parametrize(("cores", "shares"), [(range(4), 2), (range(3), 3), ((5, 7), 5)])
def test_each_process_has_cores_and_as_many_threads_as_they_allow(
    monkeypatch: pytest.MonkeyPatch, cores: Sequence[int], shares: int
) -> None:
    monkeypatch.setattr("whet.server.tensor_parallel.shares.allowed_cores", lambda: frozenset(cores))
    found = cores_of_ranks(shares)
    assert len(found) == shares
    assert {core for share in found for core in share} == set(cores)
    assert sum(map(len, found)) == max(len(cores), shares)
    for share in found:
        assert threads_on(share, shares, 64) == len(share)
        assert threads_on(share, shares, 1) == 1


def test_a_signal_without_a_name_ends_a_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", f"import os; os.kill(os.getpid(), {signal.SIGRTMIN + 6})"]
    monkeypatch.setattr("whet.server.tensor_parallel.processes.command_of", lambda _: (words, dict(os.environ)))
    started = Processes([Given("", ServingOptions(), Share(1, 2), BOUNDS, 2, (0,), 1)])
    with pytest.raises(TargetError, match=f"rank 1 of the model was ended by signal {signal.SIGRTMIN + 6} while it"):
        started.answers()
    started.end()


def test_a_damaged_file_is_one_error(tmp_path: Path) -> None:
    directory = saved(tmp_path, "llama")
    (directory / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(TargetError, match=r"model\.safetensors"):
        Engine(directory, EngineOptions(tensor_parallel_size=2))
    assert not [child for child in psutil.Process().children() if "tensor_parallel" in " ".join(child.cmdline())]


def served(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "whet", "serve", "docs-gpt", "--port", "0", "--json", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_the_server_ends_with_an_error_so_that_it_is_started_again() -> None:
    with served("--tensor-parallel-size", "2") as server:
        assert server.stdout is not None
        json.loads(server.stdout.readline())
        [other] = [
            child for child in psutil.Process(server.pid).children() if "tensor_parallel" in " ".join(child.cmdline())
        ]
        other.kill()
        _, said = server.communicate(timeout=60)
    assert server.returncode == 2
    assert "was ended by SIGKILL: start whet again" in said
