"""Checkpoints are written while the training goes on, are read by others, and are kept by rule."""

import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_states import check_step, names, saved, state_of_step
from tiny_training import TinyLM
from torch import nn

from whet.errors import OptionError, OutputError
from whet.trainer.checkpoints import Checkpoints, TrainingState, model_tensors, writing

WRITE = writing._write


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let nothing be written before the event is set."""
    event = threading.Event()

    def waiting(*arguments: Any) -> Any:
        assert event.wait(60)
        return WRITE(*arguments)

    monkeypatch.setattr(writing, "_write", waiting)
    yield event
    event.set()


def test_a_model_is_read_by_safetensors_itself(tmp_path: Path) -> None:
    model = TinyLM()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, model_tensors(model))
    read = load_file(tmp_path / "step-00000003" / "model.safetensors")
    assert read.keys() == model.state_dict().keys()
    other = TinyLM()
    other.load_state_dict(read)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_tensors_of_all_kinds_come_back_bit_for_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 256, (48,), dtype=torch.uint8, generator=generator)  # NaN and infinite numbers too
    kinds = (
        "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 uint64 uint32 uint16"
    )
    tensors = {f"model.{kind}": bits.view(getattr(torch, kind)) for kind in [*kinds.split(), "complex64"]}
    tensors |= {
        "model.bool": bits > 100,
        "model.scalar": torch.tensor(-0.0),
        "model.empty": torch.empty(0, 5),
        "model.odd": bits[:3],
        "model.transposed": torch.randn(5, 3).t(),
        "model.channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "model.slice": torch.randn(8, 8)[1:5, ::2],
        "model.parameter": nn.Parameter(torch.randn(3)),
    }
    values = {
        "nan": float("nan"),
        "best": float("inf"),
        "zero": -0.0,
        "tenth": 0.1,
        "many": 2**100,
        "text": "ä\ud800\n",
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, TrainingState(tensors, {**values, "list": [1, [None, True]], "dict": {"": {}}}))
        found = checkpoints.newest()
        assert found is None
        checkpoints.wait()
        found = checkpoints.newest()
        assert found is not None
        state = checkpoints.load(found.path)
    assert state.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        read = state.tensors[name]
        assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
        mine, theirs = (x.detach().contiguous().flatten() for x in (tensor, read))
        assert mine.numel() == 0 or torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)), name
    assert repr({key: state.values[key] for key in values}) == repr(values)
    assert (state.values["list"], state.values["dict"]) == ([1, [None, True]], {"": {}})


def test_tied_tensors_are_written_once(tmp_path: Path) -> None:
    weight = torch.randn(1000)
    state = TrainingState({"model.a": weight, "model.b": weight, "model.c": weight[:500], "optimizer.a": weight})
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, wait=True)
        path = tmp_path / "step-00000001"
        assert load_file(path / "model.safetensors").keys() == {"a", "c"}
        read = checkpoints.load(path).tensors
        assert all(torch.equal(read[name], state.tensors[name]) for name in state.tensors)
        checkpoints.save(2, TrainingState({"model.a": weight, "model.b": weight + 1}), wait=True)  # tied no more
        read = checkpoints.load(tmp_path / "step-00000002").tensors
    assert torch.equal(read["model.b"], weight + 1)


def test_large_parts_are_divided(tmp_path: Path) -> None:
    tensors = {f"model.{index}": torch.full((100,), float(index)) for index in range(5)}
    with Checkpoints(tmp_path, shard_bytes=900) as checkpoints:
        checkpoints.save(1, TrainingState({**tensors, "random.torch": torch.zeros(3)}), wait=True)
        path = tmp_path / "step-00000001"
        assert [name for name in names(path) if name.endswith("safetensors")] == [
            *(f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)),
            "random.safetensors",
        ]
        read = checkpoints.load(path).tensors
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_loaded_tensors_lie_in_the_file(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    tensor = checkpoints.load(tmp_path / "step-00000001").tensors["model.first.weight"]
    ranges = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (file,) = [
        words[-1]
        for words in ranges
        if int(words[0].split("-")[0], 16) <= tensor.data_ptr() < int(words[0].split("-")[1], 16)
    ]
    assert file == str(tmp_path / "step-00000001" / "model.safetensors")
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(2, state_of_step(2), wait=True)
    assert names(tmp_path) == ["step-00000002"]
    assert torch.equal(tensor, torch.full((20, 4), 1.0))  # it outlives the checkpoint
    tensor.add_(1)  # which changes no file


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path, gate: threading.Event) -> None:
    state = state_of_step(4)
    with Checkpoints(tmp_path) as checkpoints:
        saving = checkpoints.save(4, state)
        assert not saving.is_skipped
        assert saving.num_bytes > state.num_bytes
        for tensor in state.tensors.values():
            tensor.zero_()
        state.values["config"].clear()
        gate.set()
        checkpoints.wait()
        check_step(checkpoints.load(tmp_path / "step-00000004"), 4)
        assert checkpoints.last_written is not None
        assert (checkpoints.last_written.path, checkpoints.last_written.step) == (tmp_path / "step-00000004", 4)


def test_the_copys_memory_is_used_again(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.reserve(state_of_step(0))
        places = [file.data.data_ptr() for file in checkpoints._copy.files]
        for step in (1, 2):
            checkpoints.save(step, state_of_step(step), wait=True)
            assert [file.data.data_ptr() for file in checkpoints._copy.files] == places
        checkpoints.save(3, state_of_step(3, 77), wait=True)  # another size
        for step, size in ((1, 1000), (2, 1000), (3, 77)):
            state = checkpoints.load(tmp_path / f"step-{step:08d}")
            assert len(state.tensors["model.first.weight"]) == size
            check_step(state, step)


def test_a_save_waits_for_the_one_before(tmp_path: Path, gate: threading.Event) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.save(1, state_of_step(1)).waited_s == 0
        threading.Timer(0.1, gate.set).start()
        assert checkpoints.save(2, state_of_step(2)).waited_s > 0.02
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_after_ctrl_c_the_copy_stays_until_it_is_written(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state_of_step(1))
        with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
            patches.setattr(Future, "result", interrupted)
            checkpoints.wait()
        threading.Timer(0.05, gate.set).start()
        checkpoints.save(2, state_of_step(2))
    check_step(checkpoints.load(tmp_path / "step-00000001"), 1)


def test_a_save_may_be_skipped(tmp_path: Path, gate: threading.Event) -> None:
    with Checkpoints(tmp_path, when_busy="skip") as checkpoints:
        assert not checkpoints.save(1, state_of_step(1)).is_skipped
        assert checkpoints.save(2, state_of_step(2)).is_skipped
        threading.Timer(0.1, gate.set).start()
        assert not checkpoints.save(3, state_of_step(3), wait=True).is_skipped  # the last one of a training
    assert names(tmp_path) == ["step-00000001", "step-00000003"]
    check_step(checkpoints.load(tmp_path / "step-00000001"), 1)


class Disk:
    """Take the half of what is written at a time, and be full after so many writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: float) -> None:
        self.num_writes = 0
        self._most, self._write = most, os.write
        monkeypatch.setattr(writing.os, "write", self.write)

    def write(self, descriptor: int, data: Any) -> int:
        if self.num_writes >= self._most:
            raise OSError(28, "No space left on device")
        self.num_writes += 1
        return self._write(descriptor, data[: len(data) // 2 + 1])


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9, 0.98, 1.0])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    with monkeypatch.context() as patches:
        disk = Disk(patches, float("inf"))
        saved(tmp_path, 1)
        whole = disk.num_writes
    saved(tmp_path, 2)
    message = f"the checkpoint of step 3 cannot be written to {tmp_path}: No space left on device; free some space"
    checkpoints = Checkpoints(tmp_path)
    Disk(monkeypatch, share * (whole - 1))  # the last one writes the marker
    checkpoints.save(3, state_of_step(3, 20))
    with pytest.raises(OutputError, match=message):
        checkpoints.save(4, state_of_step(4))
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    checkpoints.save(3, state_of_step(3))
    with pytest.raises(OutputError, match=message):
        checkpoints.wait()
    checkpoints.save(3, state_of_step(3))
    with pytest.raises(OutputError, match=message):
        checkpoints.close()
    checkpoints.close()  # it was said once
    with pytest.raises(OutputError, match=message):
        checkpoints.save(3, state_of_step(3), wait=True)
    monkeypatch.undo()
    checkpoints.save(5, state_of_step(5))
    checkpoints.close()
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000005"]
    check_step(checkpoints.load(tmp_path / "step-00000005"), 5)


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """The kernel writes a part of a file here, and then nothing more."""
    saved(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (
        pytest.raises(OutputError, match=r"step 2 cannot be written to .*: File too large"),
        Checkpoints(tmp_path) as c,
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, hard))
        try:
            c.save(2, state_of_step(2, 1_000_000))
            c.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-00000001"]


def test_another_fault_of_the_thread_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("of no use")

    monkeypatch.setattr(writing, "_write", broken)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of_step(1))
    with pytest.raises(OutputError, match=r"could not be written to .*: ZeroDivisionError: of no use; the checkpoints"):
        checkpoints.close()
    assert names(tmp_path) == []


def test_an_error_in_the_block_is_the_one_that_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, 0)
    with pytest.raises(KeyError, match="training"), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state_of_step(1))
        raise KeyError("training")


def test_what_is_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=2, keep_every=4) as checkpoints:
        for step in range(1, 10):
            checkpoints.save(step, state_of_step(step, 3), wait=True)
            if step == 3:
                checkpoints.pin(tmp_path / "step-00000003")
        assert [one.step for one in checkpoints.all()] == [9, 8, 4, 3]
        assert [one.step for one in checkpoints.all() if one.is_pinned] == [3]
        checkpoints.unpin(tmp_path / "step-00000003")
        checkpoints.unpin(tmp_path / "step-00000003")
        checkpoints.save(10, state_of_step(10, 3), wait=True)
    assert names(tmp_path) == [f"step-{step:08d}" for step in (4, 8, 9, 10)]


def test_damaged_checkpoints_do_not_count(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    for step in (2, 3):
        (tmp_path / f"step-{step:08d}" / "state.json").unlink()
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(4, state_of_step(4, 3), wait=True)
        assert [one.step for one in checkpoints.all()] == [4, 1]
        checkpoints.save(5, state_of_step(5, 3), wait=True)
        assert [one.step for one in checkpoints.all()] == [5, 4]


def test_a_run_that_went_back(tmp_path: Path) -> None:
    """What was saved last is the newest, even where its step is lower."""
    saved(tmp_path, 1, 2, 3)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(2, state_of_step(2, 5), wait=True)
        found = checkpoints.newest()
        assert found is not None
        assert found.path == tmp_path / "step-00000002-2"
        assert len(checkpoints.load(found.path).tensors["model.first.weight"]) == 5
        assert names(tmp_path) == ["step-00000002-2", "step-00000003"]
        checkpoints.save(3, state_of_step(3, 5), wait=True)
        assert names(tmp_path) == ["step-00000002-2", "step-00000003-2"]


def test_left_overs_are_removed(tmp_path: Path) -> None:
    stale = [".step-00000001.partial-00000000", ".step-00000007-2.removed-0123abcd"]
    others = [".step-1.partial", "notes", ".git"]
    for name in stale + others:
        (tmp_path / name / "inner").mkdir(parents=True)
    (tmp_path / f"{stale[0]}.lock").touch()
    (tmp_path / ".step-00000002.partial-00000000.lock").touch()
    saved(tmp_path, 1)
    assert names(tmp_path) == sorted(["step-00000001", *others])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (TrainingState({"weight": torch.zeros(1)}), r"is named 'weight'; begin with the word of its part"),
        (TrainingState({"../x.weight": torch.zeros(1)}), "begin with the word"),
        (
            TrainingState({"model.a": torch.zeros(2).to_sparse()}),
            r"model\.a is a tensor of torch\.float32, torch",
        ),
        (TrainingState({"model.a": torch.zeros(2, device="meta")}), "on the device meta"),
        (TrainingState({"model.a": torch.zeros(2, dtype=torch.complex128)}), "complex128"),
        (TrainingState({}, {"lr": (1, 2)}), r"values\.lr is a tuple, which JSON does not hold as it is"),
        (TrainingState({}, {"a": [{1: 2}]}), r"values\.a\.0 is a dict"),
        (TrainingState({}, {"a": torch.zeros(1)}), r"values\.a is a Tensor"),
    ],
)
def test_what_cannot_be_saved_is_refused(tmp_path: Path, state: TrainingState, message: str) -> None:
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(OptionError, match=message):
        checkpoints.save(1, state)
    assert names(tmp_path) == []


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="keep must be 1 or more; got 0"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(OptionError, match="keep_every must be 1 or more"):
        Checkpoints(tmp_path, keep_every=0)
    with pytest.raises(OptionError, match="when_busy must be 'wait' or 'skip'"):
        Checkpoints(tmp_path, when_busy="never")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a number from 0; got -1"):
        Checkpoints(tmp_path).save(-1, TrainingState())
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot make the directory"):
        Checkpoints(tmp_path / "file").save(1, TrainingState())
    with pytest.raises(OptionError, match=r"two parts of a checkpoint are named 'model\.a'"):
        TrainingState({"model.a": torch.zeros(1)}) | TrainingState({"model.a": torch.zeros(1)})
