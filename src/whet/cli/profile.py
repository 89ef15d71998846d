"""Find what bounds a model, a training loop, or a recorded trace: whet profile."""

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.busy import BusyWaitOption, OnBusyOption, busy_wait_s
from whet.errors import OptionError, TraceError, TrainingTarget
from whet.measure.fast_import import import_large
from whet.measure.on_busy import OnBusy
from whet.ui.units import seconds
from whet.workloads.target_name import check_name, is_training

NAMES = {"target": check_name}
"""What checks a parameter as it was typed; see typed.py."""

NO_NAMES_WITH = ("trace",)
"""Beside which nothing is checked so: of `--trace A B`, B is a file."""

_Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="the target: digits-cnn, docs-encoder, docs-gpt, docs-ssm, docs-gpt-training, hf:DIR, FILE.py:FUNCTION or "
        "package.module:FUNCTION",
    ),
]
_Others = Annotated[list[str] | None, typer.Argument(metavar="FILE", hidden=True)]
_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="a new directory for profile.json and trace.json.gz")]
_Depth = Annotated[int, typer.Option(help="how deep the tree of modules is shown")]
_Rows = Annotated[int, typer.Option(help="the most rows of each table")]
_Limit = Annotated[str, typer.Option(metavar="TIME", help="the time limit of the whole profile, as 5m or 90s")]
_Trace = Annotated[
    list[Path] | None,
    typer.Option(help="a trace of PyTorch's profiler, in place of a target; two traces are compared"),
]
_Step = Annotated[bool, typer.Option("--step", help="show the phases of the target's training loop")]
_Nvtx = Annotated[bool, typer.Option("--nvtx", help="only run the target, inside NVTX ranges, for nsys and ncu")]
_AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]


def profile(
    target: _Target = None,
    others: _Others = None,
    out: _Out = None,
    depth: _Depth = 3,
    rows: _Rows = 12,
    limit: _Limit = "5m",
    trace: _Trace = None,
    step: _Step = False,
    nvtx: _Nvtx = False,
    on_busy: OnBusyOption = "wait",
    busy_wait: BusyWaitOption = "2m",
    as_json: _AsJson = False,
) -> None:
    """Say what bounds a model, how far it is from the machine's limit, and what would make it faster.

    The profile has the time, operations, bytes and bound of each layer, the slowest operators, the memory by the line
    that allocated it, and what grows from call to call. --out also writes a trace for ui.perfetto.dev. For a training
    run it has the parts of a step, and the forward and backward of each layer.
    """
    paths = [*(trace or ()), *(Path(other) for other in others or ())]
    if trace:  # `--trace A B` gives B as an argument
        paths += [Path(target)] if target is not None else []
        if step or nvtx or out is not None:
            raise OptionError(
                "--trace reads what was recorded, and --step, --nvtx and --out need a target: give one of both"
            )
        for path in paths:
            if not path.is_file():
                raise TraceError(
                    f"{path}: cannot be read: {'it is no file' if path.exists() else 'there is no such file'}"
                )
        _run("profile_trace", "run_trace", paths, as_json=as_json)
        return
    if target is None:
        raise OptionError("give a TARGET to profile, or --trace FILE; `whet profile --help` lists what there is")
    if others:
        raise OptionError(f"whet profile takes one target, not {1 + len(others)}; profile them one after the other")
    if depth < 1 or rows < 1:
        raise OptionError(f"--depth {depth} and --rows {rows}: both must be 1 or more")
    OnBusy.checked(on_busy)
    busy_wait_s(busy_wait)
    options: dict[str, Any] = {
        "limit_s": seconds("--limit", limit),
        "on_busy": on_busy,
        "busy_wait": busy_wait,
        "as_json": as_json,
    }
    if step and (nvtx or out is not None):
        raise OptionError(
            "--step shows the phases of a training loop; --nvtx and --out are for a model: give one of both"
        )
    if step:
        _run("profile_step", "run_step", target, **options)
    elif nvtx:
        import_large("whet.tuner.target_profile.model").profile_nvtx(target)
    else:
        _profile_target(target, {"out": out, "rows": rows, **options}, depth)


def _profile_target(target: str, options: dict[str, Any], depth: int) -> None:
    """Profile calls of a model, or the steps of a training run where the target turns out to be one."""
    if not is_training(target):
        with contextlib.suppress(TrainingTarget):
            _run("profile_target", "run_target", target, depth=depth, **options)
            return
    _run("profile_training", "run_training", target, **options)


def _run(module: str, function: str, *args: Any, **kwargs: Any) -> None:
    """Only what is asked for is imported: a trace is read without torch."""
    getattr(import_large(f"whet.cli.{module}"), function)(*args, **kwargs)
