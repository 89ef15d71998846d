"""Run `whet train` with one technique after the other, in one process or as a part of several."""

import os
from pathlib import Path
from typing import Any

import tiny_run
from rank_runs import log


def with_each(place: str, names: list[str], stage: int, group: str | None) -> dict[str, Any]:
    """Return the losses of a short run with each technique alone, or the error that refused it.

    Args:
        place: A directory for the runs.
        group: A name for the meeting places of the processes; None for one process.
    """
    from whet.core.recipe import Recipe, Step
    from whet.errors import WhetError
    from whet.measure.isolate import RENDEZVOUS
    from whet.trainer.train import train

    found: dict[str, Any] = {}
    for name in names:
        out = Path(place) / f"{name}-{stage}"
        if group is not None:
            os.environ[RENDEZVOUS] = f"file://{place}/{group}-{name}"
        recipe = Path(place) / f"{name}-{stage}-{os.getpid()}.toml"
        Recipe(kind="training", steps=(Step(technique=name, options={}),)).write(recipe)
        config = written(Path(place), out, early=name == "optimizer_in_backward")
        try:
            train(config, [f"recipe={recipe}", f"parallel.zero_stage={stage}"], say=lambda text: None)
            found[name] = [line["loss"] for line in log(out)]
        except WhetError as error:
            found[name] = str(error)
    return found


def written(place: Path, out: Path, *, early: bool) -> Path:
    """Write the configuration of a run; one whose optimiser updates early clips nothing."""
    import tomli_w

    tables = tiny_run.tables(
        place,
        steps=3,
        model={"hidden_size": 64, "intermediate_size": 128},
        batch={"global_batch_size": 6},
        optimizer={"lr": 1e-3, "max_norm": 0.0 if early else 1.0},
        schedule={"warmup_steps": 0},
        checkpoints={"save_interval": 2},
    )
    file = place / f"{out.name}-{os.getpid()}.toml"
    file.write_text(tomli_w.dumps({**tables, "out": str(out), "threads": 1}))
    return file
