"""whet train on several processes: the run of one process, however it is divided, cut off and gone on with."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from many import Group
from rank_runs import UNEVEN, check_same, log, refused, train_here, trained, weights, written
from tiny_run import config
from tiny_run import trained as trained_alone

GRID = ["parallel.tensor_parallel_degree=2", "parallel.pipeline_parallel_degree=2"]
STAGES = ["parallel.zero_stage=0", "parallel.zero_stage=1", "parallel.zero_stage=2", "parallel.zero_stage=3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(place: Path) -> Path:
    """The run that one process makes."""
    trained_alone(config(place, out=str(place / "alone"), **UNEVEN))
    return place / "alone"


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_makes_the_run_of_one_process(place: Path, alone: Path, stage: str) -> None:
    name = f"whole{stage[-1]}"
    found = trained(
        2, written(place, name, **UNEVEN), stage, "batch.micro_batch_size=1" if stage[-1] in "03" else stage
    )
    assert [one["step"] for one in found] == [12, 12] and found[0]["held_out"] == found[1]["held_out"]
    assert found[0]["said"] and not found[1]["said"]
    check_same(place / name, alone)


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_run_goes_on_with_another_number_of_processes(place: Path, alone: Path, stage: str) -> None:
    """The one that was killed is named, the others end soon, and both other numbers of processes go on."""
    name = f"killed{stage[-1]}"
    file = written(place, name, **UNEVEN)
    began = time.monotonic()
    [message] = refused(2, file, stage, fault="1 kill 8")
    assert "rank 1 on " in message and "was last heard of in step " in message and "--resume" in message
    assert time.monotonic() - began < 90
    with Group(train_here, 3, str(file), [stage], True, "2 term 3") as group:
        assert [found["exit_code"] for _, found in group.answers()] == [143] * 3
    trained_alone(config(place, out=str(place / name), **UNEVEN), resume=True)
    check_same(place / name, alone)


@pytest.mark.thorough
def test_a_killed_run_of_shared_matrices_and_layers_goes_on_with_other_plans(place: Path, alone: Path) -> None:
    file = written(place, "killed-grid", **UNEVEN)
    [message] = refused(4, file, *GRID, fault="3 kill 8")
    assert "rank 3 on " in message and "was last heard of in step " in message and "--resume" in message
    for world_size, plan, fault in (
        (2, ["parallel.zero_stage=2"], "1 term 2"),
        (4, [*GRID, "parallel.sequence_parallel=false", "parallel.pipeline_schedule=gpipe"], "3 term 2"),
    ):
        with Group(train_here, world_size, str(file), plan, True, fault) as group:
            assert [found["exit_code"] for _, found in group.answers()] == [143] * world_size
    trained_alone(config(place, out=str(place / "killed-grid"), **UNEVEN), resume=True)
    check_same(place / "killed-grid", alone)


def test_one_process_goes_on_as_three(place: Path, alone: Path) -> None:
    file = written(place, "grown", **UNEVEN)
    trained_alone(config(place, out=str(place / "grown"), **UNEVEN), stop_at=5)
    trained(3, file, "parallel.zero_stage=3", resume=True)
    check_same(place / "grown", alone)


@pytest.mark.parametrize(
    ("world_size", "plan"), [(2, ["parallel.zero_stage=2"]), pytest.param(4, GRID, marks=pytest.mark.thorough)]
)
def test_a_signal_to_one_ends_all_with_a_checkpoint_and_they_go_on_bit_for_bit(
    place: Path, world_size: int, plan: list[str]
) -> None:
    """Dropout draws on each process what it would have drawn."""
    changes: dict[str, Any] = {**UNEVEN, "optimizer": {"dropout": 0.2, "lr": 1e-2}}
    whole, cut = (place / f"{name}{world_size}" for name in ("dropped", "stopped"))
    trained(world_size, written(place, whole.name, **changes), *plan)
    file = written(place, cut.name, **changes)
    with Group(train_here, world_size, str(file), plan, False, "1 term 5") as group:
        answers = [found for _, found in group.answers()]
    assert [(one["exit_code"], one["step"]) for one in answers] == [(143, 5)] * world_size
    trained(world_size, file, *plan, resume=True)
    assert log(cut) == log(whole)
    for name, value in weights(cut).items():
        assert torch.equal(value, weights(whole)[name]), name


def test_dropout_differs_between_processes(place: Path, alone: Path) -> None:
    changes: dict[str, Any] = {"optimizer": {"dropout": 0.5, "lr": 1e-9}, "steps": 3, "schedule": {"warmup_steps": 0}}
    same = {"batch": {"global_batch_size": 2}}
    trained_alone(config(place, out=str(place / "drops1"), **changes, **same))
    trained(2, written(place, "drops2", **changes, **same))
    one, two = (log(place / name)[0]["gradient_norm"] for name in ("drops1", "drops2"))
    assert one != pytest.approx(two, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["parallel.tensor_parallel_degree=2", "parallel.data_parallel_replicate_degree=2"], "does not divide the 2"),
        (["batch.global_batch_size=1"], "gives no row to some of the 2 processes"),
        (["1:seed=4"], "rank 1 has another seed than rank 0"),
        (["1:data.train=missing.txt"], "rank 1: "),
        (["device=cuda"], "device cuda:0 needs a GPU"),
        (["parallel.static_graph=true", "batch.micro_batch_size=1", "batch.global_batch_size=8"], "static_graph needs"),
    ],
)
def test_what_cannot_be_is_refused_with_one_message(place: Path, changes: list[str], message: str) -> None:
    file = written(place, "refused", **{**UNEVEN, "batch": {"global_batch_size": 7}})
    [told] = refused(2, file, *changes)
    assert message in told
    assert not (place / "refused" / "log.jsonl").exists() and not (place / "refused" / "run.lock").exists()


def test_a_full_disk_on_one_process_ends_all_and_loses_nothing(place: Path) -> None:
    file = written(place, "full", **UNEVEN)
    trained(2, file, "steps=4")
    [told] = refused(2, file, resume=True, fault="1 full 0")
    assert told.startswith("rank 1: the checkpoint of step") and "No space left on device" in told
    kept = sorted(path.name for path in (place / "full" / "checkpoints").iterdir())
    assert kept == ["step-00000003", "step-00000004"]


def test_a_process_that_hangs_is_named(place: Path) -> None:
    file = written(place, "hung", **UNEVEN)
    with Group(train_here, 2, str(file), ["parallel.timeout_s=3"], False, "1 hang 4") as group:
        (fault, found), (last, _) = group.answers()
    assert not fault, fault
    assert "came: rank 1 on " in found["error"] and "rank 0" not in found["error"], found
    assert "ended without an answer" in last, "it cannot end by itself"


def test_a_second_run_in_the_directory_is_refused_while_the_first_process_holds_the_lock(place: Path) -> None:
    from whet.trainer.checkpoints import RunLock

    file = written(place, "locked", **UNEVEN)
    with RunLock(place / "locked"):
        [told] = refused(2, file)
    assert "another run uses" in told
