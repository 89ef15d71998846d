"""A script that torchrun or accelerate starts in several processes: a recipe reaches each, or is refused for all."""

import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from launched_scripts import (
    ACCELERATE,
    BIN,
    CHECKPOINTING,
    DDP,
    FSDP2,
    FUSED,
    LONG,
    LONG_ALONE,
    TWO,
    reference_losses,
)

from whet.cli import main
from whet.core.recipe import Recipe, Step
from whet.errors import TargetError
from whet.scripts.injection.launchers import launcher_length
from whet.scripts.injection.launching import name_of
from whet.scripts.injection.script_command import ScriptCommand


@pytest.mark.parametrize(
    ("line", "length", "name"),
    [
        ("torchrun --standalone --nproc-per-node 2 train.py 3", 1, "train.py"),
        ("/opt/bin/torchrun --nnodes=2 -m package.train", 1, "package.train"),
        ("python -m torch.distributed.run --nproc-per-node 2 dir/train.py", 3, "train.py"),
        ("python3 -u -m torch.distributed.run --module package.train", 4, "package.train"),
        ("accelerate launch --cpu --num_processes 2 train.py", 2, "train.py"),
        ("accelerate-launch -m package.train", 1, "package.train"),
        ("python -m accelerate.commands.launch train.py", 3, "train.py"),
        ("python train.py -m torch.distributed.run", 0, "train.py"),
        ("python -m package.train torchrun", 0, "package.train"),
        ("accelerate config train.py", 0, "accelerate"),
        ("bash torchrun train.py", 0, "bash"),
        ("", 0, ""),
    ],
)
def test_spellings_of_launchers(line: str, length: int, name: str) -> None:
    words = line.split()
    assert launcher_length(words) == length
    assert not words or name_of(words) == name


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "deepspeed --num_gpus 2 train.py",
            "whet does not reach the processes that deepspeed starts; start the script",
        ),
        ("mpirun -n 2 python train.py", "that mpirun starts"),
        ("srun python train.py", "that srun starts"),
        (f"{BIN}/accelerate launch --use_deepspeed train.py", "that accelerate --use_deepspeed starts"),
        (f"{BIN}/accelerate launch --mpirun-hostfile=hosts train.py", "that accelerate --mpirun-hostfile=hosts starts"),
        (f"{BIN}/accelerate config train.py", "is not a Python command; write it as"),
        (f"{BIN}/torchrun --nproc-per-node 2 train", "names no script that ends in .py"),
        (f"{BIN}/torchrun -m --nproc-per-node 2 train", "names no script that ends in .py"),
        (f"{BIN}/torchrun missing.py", "there is no script missing.py"),
        ("torchrun-that-is-missing train.py", "is not a Python command"),
    ],
)
def test_commands_that_are_refused(place: Path, line: str, said: str) -> None:
    (place / "train.py").touch()
    with pytest.raises(TargetError, match=re.escape(said)):
        ScriptCommand.checked(line.split())


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("words", [["tune", "digits-cnn"], ["run", "--recipe", "recipe.toml", "--", "python", "a.py"]])
def test_whet_that_a_launcher_started_is_refused_once(
    words: list[str], rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("whet.scripts.injection.launchers._FIRST_S", 0.0)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: this whet is one of 2 that a launcher started") if rank == 0 else said == ""


def whet_run(place: Path, recipe: tuple[Step, ...], source: str, launcher: str, *words: str) -> subprocess.Popen[str]:
    """Start a script under a launcher with `whet run`, as people do."""
    (place / "train.py").write_text(source)
    Recipe(kind="training", steps=recipe).write(place / "recipe.toml")
    command = [str(BIN / "whet"), "run", "--recipe", "recipe.toml", "--", str(BIN / launcher), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses_in(out: str) -> list[float]:
    return [float(line.split()[1]) for line in out.splitlines() if line.startswith("loss ")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "launcher", "words", "applied"),
    [
        (DDP, "torchrun", TWO, "Sequential in 2 processes"),
        (FSDP2, "python", ("-m", "torch.distributed.run", *TWO), "FSDPSequential in 2 processes"),
        (ACCELERATE, "accelerate", ("launch", "--multi_gpu", "--num_processes", "2"), "Sequential in 2 processes"),
        (ACCELERATE, "accelerate", ("launch", "--cpu"), "Sequential"),
    ],
    ids=["torchrun", "fully_shard", "accelerate", "accelerate, one process"],
)
def test_launched_processes_train_with_a_recipe(
    place: Path, source: str, launcher: str, words: tuple[str, ...], applied: str
) -> None:
    run = whet_run(place, (CHECKPOINTING, FUSED), source, launcher, *words, "train.py", "5")
    out, err = run.communicate(timeout=280)
    assert run.returncode == 0, err
    assert losses_in(out) == pytest.approx(reference_losses(5), rel=1e-5)
    said = [line for line in err.splitlines() if line.startswith(("whet:", "error:"))]
    assert said == [f"whet: checkpointing + fused_optimizer applied to {applied}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("technique", "source", "why"),
    [
        ("bf16_parameters", DDP, "it does not bear DDP: an update exchanges the parameters' data"),
        ("autocast_fp16", FSDP2, "it does not bear FSDP2: the loss scale"),
    ],
)
def test_what_does_not_bear_several_processes_is_refused_once(
    place: Path, technique: str, source: str, why: str
) -> None:
    run = whet_run(place, (Step(technique=technique),), source, "torchrun", *TWO, "train.py", "5")
    out, err = run.communicate(timeout=280)
    assert (run.returncode, losses_in(out)) == (2, [])
    [line] = [line for line in err.splitlines() if not line.startswith("W")]  # torchrun's warning of OMP_NUM_THREADS
    assert line.startswith(f"error: {technique} cannot be applied here: {why}")


@pytest.mark.slow
def test_ranks_of_which_one_refuses_are_all_ended(place: Path) -> None:
    uneven = DDP.replace(
        "model = DistributedDataParallel(model)", "model = nn.Sequential(nn.Conv2d(1, 1, 1)) if rank else model"
    )
    uneven = uneven.replace("x[rank::size]", "x[:8][None, None] if rank else x[:8]").replace("y[rank::size]", "0")
    run = whet_run(place, (Step(technique="channels_last"),), uneven, "torchrun", *TWO, "train.py", "5")
    _, err = run.communicate(timeout=280)
    assert run.returncode == 2
    why = "channels_last cannot be applied here: the model has no convolutions over images"
    assert err.splitlines()[-1] == f"error: {why}; leave it out of the recipe"


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "number"), [("torchrun", signal.SIGINT), ("accelerate", signal.SIGTERM)])
def test_a_signal_ends_all_processes(place: Path, launcher: str, number: signal.Signals) -> None:
    source, words = (LONG, TWO) if launcher == "torchrun" else (LONG_ALONE, ("launch", "--cpu"))
    run = whet_run(place, (FUSED,), source, launcher, *words, "train.py", "1000000")
    try:
        began = time.monotonic()
        while not (place / "going").exists() and time.monotonic() < began + 200:
            time.sleep(0.1)
        tree = psutil.Process(run.pid).children(recursive=True)
        assert len(tree) >= 2
        run.send_signal(number)
        run.communicate(timeout=60)
        assert run.returncode != 0
        assert not [one for one in tree if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    finally:
        run.kill()
