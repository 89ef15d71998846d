"""Plan a training or a server of a language model on a cluster: whet plan."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from whet.core.slo import Slo
from whet.errors import OptionError
from whet.files import usable_directory
from whet.ui.units import amount

if TYPE_CHECKING:
    from whet.planner.answer import PlanAnswer
    from whet.planner.serving_answer import ServingAnswer

_SLO = "ttft=1s,tpot=50ms"

_Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="a directory with a config.json, a config.json, or a config of whet train"),
]
_Gpus = Annotated[int | None, typer.Option(help="how many GPUs there are", show_default="those of a node")]
_Gpu = Annotated[str, typer.Option(metavar="NAME", help="which GPUs, as h100, h200, a100 or v100")]
_Nodes = Annotated[int | None, typer.Option(help="how many nodes there are", show_default="as many as the GPUs fill")]
_Cluster = Annotated[
    str | None,
    typer.Option(metavar="FILE|this", help="a TOML that describes the cluster, or this machine; in place of --gpu"),
]
_Batch = Annotated[
    int | None, typer.Option(help="the rows of a step, over all GPUs", show_default="about 4 million tokens")
]
_Length = Annotated[
    int | None, typer.Option(help="the tokens of a row", show_default="what the model takes, at most 8192")
]
_Tokens = Annotated[
    str | None, typer.Option(metavar="NUMBER", help="the tokens of the whole training, as 15T: say its time and cost")
]
_Precision = Annotated[
    Literal["float32", "bfloat16", "fp8"], typer.Option(help="the numbers in which matrices are multiplied")
]
_Optimizer = Annotated[
    str, typer.Option(metavar="NAME", help="what updates the parameters: adamw, adamw_8bit, sgd, lion, adafactor, muon")
]
_Software = Annotated[
    str, typer.Option(metavar="NAME", help="whose published speeds are taken: torch (FSDP, torchtitan) or megatron")
]
_Compiled = Annotated[bool, typer.Option("--compile", help="torch.compile fuses small operators")]
_Price = Annotated[
    float | None, typer.Option(help="dollars for an hour of a GPU", show_default="the cluster's, if it is known")
]
_Top = Annotated[int, typer.Option(help="the most plans that are shown")]
_Serve = Annotated[bool, typer.Option("--serve", help="plan a server in place of a training")]
_Prompt = Annotated[int, typer.Option(help="with --serve: the tokens of a prompt")]
_Output = Annotated[int, typer.Option(help="with --serve: the tokens of an answer")]
_Rate = Annotated[float | None, typer.Option(help="with --serve: the requests a second")]
_Slo = Annotated[str | None, typer.Option(metavar="LIMITS", help="with --serve: the limits", show_default=_SLO)]
_Trace = Annotated[
    bool, typer.Option("--trace", help="run a step of one GPU of the best plan without numbers, and count its memory")
]
_AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
_Report = Annotated[Path | None, typer.Option(metavar="DIR", help="a directory for report.html and plan.json")]


def _check_model(given: str) -> None:
    from whet.planner.model_files import read_model

    read_model(given)


NAMES = {"model": _check_model}
"""What checks a parameter as it was typed; see typed.py."""


def plan(
    model: _Model,
    gpus: _Gpus = None,
    gpu: _Gpu = "h100",
    nodes: _Nodes = None,
    cluster: _Cluster = None,
    global_batch_size: _Batch = None,
    sequence_length: _Length = None,
    tokens: _Tokens = None,
    precision: _Precision = "bfloat16",
    optimizer: _Optimizer = "adamw",
    software: _Software = "torch",
    compiled: _Compiled = False,
    price: _Price = None,
    top: _Top = 5,
    trace: _Trace = False,
    serve: _Serve = False,
    prompt_tokens: _Prompt = 512,
    output_tokens: _Output = 128,
    rate: _Rate = None,
    slo: _Slo = None,
    as_json: _AsJson = False,
    report: _Report = None,
) -> None:
    """Predict how a training is divided best among GPUs, what it takes, and what it costs.

    No weights are read, and nothing is run but what --trace asks for. Every figure has an interval, and
    every assumption is said.
    """
    num_tokens = None if tokens is None else amount("--tokens", tokens)
    Slo.parse(slo or _SLO)
    _check_together(serve, {"--rate": rate, "--slo": slo}, {
        "--nodes": nodes, "--global-batch-size": global_batch_size, "--sequence-length": sequence_length,
        "--tokens": tokens, "--report": report, "--trace": trace or None,
        "--optimizer": None if optimizer == "adamw" else optimizer,
        "--software": None if software == "torch" else software, "--compile": compiled or None,
    })  # fmt: skip
    if serve:
        if rate is None:
            raise OptionError("--serve needs --rate, the requests a second")
        if precision == "float32":
            raise OptionError("--serve takes --precision bfloat16 or fp8; got 'float32'")
        from whet.planner.serving_answer import plan_serving

        answer = plan_serving(
            model, rate=rate, prompt_tokens=prompt_tokens, output_tokens=output_tokens, slo=slo or _SLO, gpus=gpus,
            gpu=gpu, cluster=cluster, precision=precision, price=price,
        )  # fmt: skip
        _show_serving(answer, as_json=as_json)
        return
    directory = None if report is None else usable_directory(report)
    from whet.planner.planning import plan as make_plan

    found = make_plan(
        model, gpus=gpus, gpu=gpu, nodes=nodes, cluster=cluster, global_batch_size=global_batch_size,
        sequence_length=sequence_length, tokens=num_tokens, precision=precision, optimizer=optimizer,
        software=software, compiled=compiled, price=price, top=top, trace=trace,
    )  # fmt: skip
    _show(found, as_json=as_json, directory=directory)


def _check_together(serve: bool, of_serving: dict[str, object], of_training: dict[str, object]) -> None:
    """Raise OptionError where an option is given that means nothing beside --serve, or without it."""
    for name, value in (of_training if serve else of_serving).items():
        if value is not None:
            raise OptionError(
                f"{name} goes with {'a training; leave it or --serve out' if serve else '--serve; add it'}"
            )


def _show(answer: "PlanAnswer", *, as_json: bool, directory: Path | None) -> None:
    if directory is not None:
        from whet.planner.report import write_report

        write_report(answer, directory)
    if as_json:
        print(json.dumps(answer.model_dump(mode="json")))
        return
    from rich.console import Console

    from whet.cli.plan_tables import show_plan

    console = Console()
    show_plan(console, answer)
    if directory is not None:
        console.print(f"report: {directory / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _show_serving(answer: "ServingAnswer", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer.model_dump(mode="json")))
        return
    from rich.console import Console

    from whet.cli.plan_tables import show_serving

    show_serving(Console(), answer)
