"""Train a language model from a configuration: whet train."""

import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whet.cli.exit_codes import INTERRUPTED
from whet.core.toml_file import read_toml
from whet.errors import OptionError
from whet.measure.fast_import import large_imports
from whet.ui.figures import duration
from whet.ui.units import seconds

if TYPE_CHECKING:
    from whet.trainer.result import TrainResult

_Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="a TOML file; docs/train.md lists its keys")]
_Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="values in the place of the file's, as: optimizer.lr=1e-3"),
]
_Resume = Annotated[bool, typer.Option("--resume", help="go on from the newest whole checkpoint")]
_Tune = Annotated[
    str | None,
    typer.Option(metavar="OBJECTIVE", help="first find the recipe with the best throughput, or the least memory"),
]
_Budget = Annotated[str, typer.Option(metavar="TIME", help="the time for --tune, as 10m")]
_AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]


NAMES = {"config": lambda given: read_toml(Path(given))}
"""What checks a parameter as it was typed; see typed.py."""


def train(
    config: _Config,
    changes: _Changes = None,
    resume: _Resume = False,
    tune: _Tune = None,
    tune_budget: _Budget = "10m",
    as_json: _AsJson = False,
) -> None:
    """Train a language model from a configuration, or go on with a run.

    SIGTERM and Ctrl-C write a checkpoint and end the run with exit code 143 or 130.
    """
    if tune not in (None, "throughput", "memory"):
        raise OptionError(f"--tune takes throughput or memory; got {tune!r}")
    budget_s = seconds("--tune-budget", tune_budget)
    from whet.trainer.config import read_config  # pydantic, which help does without

    read_config(config, changes or [])
    with large_imports():
        from rich.console import Console

        from whet.cli.tuning_progress import TuningProgress
        from whet.parallel.started import speaks
        from whet.trainer.train import train as train_model
    console = Console(stderr=as_json)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    try:
        result = train_model(
            config,
            changes or [],
            resume=resume,
            tune=tune,  # type: ignore[arg-type]
            tune_budget_s=budget_s,
            tune_progress=TuningProgress(console, str(config), budget_s),
            say=say,
        )
    except KeyboardInterrupt:  # the second Ctrl-C: the first one ends a run with a checkpoint
        say(
            f"interrupted within a step. Go on from the newest checkpoint, if there is one, with: whet train {config} "
            "--resume"
        )
        sys.exit(INTERRUPTED)
    if result.exit_code:  # everything is saved, and another Ctrl-C would only interrupt the interpreter's end
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not speaks():
        sys.exit(result.exit_code)
    say(_sentence(result, config))
    if as_json:
        print(json.dumps(dataclasses.asdict(result), default=str))
    sys.exit(result.exit_code)


def _sentence(result: "TrainResult", config: Path) -> str:
    """Return what came of a run, and what to do next."""
    told = f"{result.step} of {result.steps} steps, {result.tokens:,} tokens, {duration(result.seconds)}"
    if result.held_out_loss is not None:
        unit = "text" if result.task == "classification" else "token"
        told += f"; held-out loss {result.held_out_loss:.4f} nats a {unit}"
    if "accuracy" in result.scores:
        told += f", accuracy {result.scores['accuracy']:.4f}, macro F1 {result.scores['macro_f1']:.4f}"
    if result.model is not None:
        return f"{told}. {_where(result, result.model)}"
    return f"stopped by {result.stopped_by} after {told}. Go on with: whet train {config} --resume"


def _where(result: "TrainResult", model: Path) -> str:
    """Return where the model is, and what loads it."""
    if result.task == "classification":
        return f"The classifier is in {model}: transformers.AutoModelForSequenceClassification.from_pretrained loads it"
    from whet.trainer.lora import ADAPTER  # torch, which is imported by now

    if (model / ADAPTER).is_file():
        return f"The adapter is in {model}: peft.PeftModel.from_pretrained(BASE, {str(model)!r}) adds it to its base"
    return f"The model is in {model}: whet serve {model}"
