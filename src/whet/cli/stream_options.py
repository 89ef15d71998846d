"""Define the options of `whet stream`, by the panels of its help."""

from pathlib import Path
from typing import Annotated

import typer

from whet.models.diffusion.guidance import KINDS
from whet.models.diffusion.names import BACKENDS, DTYPE_NAMES, SAMPLER_NAMES
from whet.streamer.frames import FITS

_FRAMES, _TIME = "Frames in and out", "Time and rate"
_MODEL, _COMPUTING = "What a diffusion model draws", "How it is computed"
_DRIFT = "Test of drift"

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="a built-in name, a diffusion model's directory in diffusers' layout, FILE.py:FUNCTION of a "
        "StreamWorkload, or what whet tune made of one",
    ),
]
SourceOption = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="where frames come from: a video file, an image folder, camera, camera:1 or synthetic:FRAMES",
        rich_help_panel=_FRAMES,
    ),
]
SinkOption = Annotated[
    str,
    typer.Option(
        metavar="SINK", help="where answers go: a video file, a folder (ends with /), or null", rich_help_panel=_FRAMES
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(help="steps of the sampler a frame", show_default="4; 1 for signs-stream", rich_help_panel=_MODEL),
]
SamplerOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=", ".join(SAMPLER_NAMES),
        show_default="that of the scheduler's settings",
        rich_help_panel=_MODEL,
    ),
]
GuidanceKindOption = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help=f"how the output follows the prompt: {', '.join(KINDS)}; with a weight, and a delta, as self:1.5:0.9",
        rich_help_panel=_MODEL,
    ),
]
StrengthOption = Annotated[
    float | None,
    typer.Option(
        help="the share of all noise that a frame gets, above 0 to 1; more changes it more",
        show_default="0.5",
        rich_help_panel=_MODEL,
    ),
]
PromptOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="the prompt, for models with a text encoder", rich_help_panel=_MODEL)
]
NegativeOption = Annotated[
    str, typer.Option("--negative-prompt", metavar="TEXT", help="what the output should not be", rich_help_panel=_MODEL)
]
EmbedsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompt-embeds",
        metavar="FILE",
        help="a safetensors file with prompt_embeds, instead of a prompt",
        rich_help_panel=_MODEL,
    ),
]
SizeOption = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="HEIGHTxWIDTH",
        help="the size of the frames that the model takes",
        show_default="its own",
        rich_help_panel=_MODEL,
    ),
]
FitOption = Annotated[
    str,
    typer.Option(
        "--fit",
        metavar="WAY",
        help=f"how frames of another aspect take that size: {', '.join(FITS)}",
        rich_help_panel=_MODEL,
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="how long a frame may take, as 40ms", show_default="no limit", rich_help_panel=_TIME
    ),
]
RollingOption = Annotated[
    bool,
    typer.Option(
        "--rolling/--no-rolling",
        help="work on several frames at once, each at a step of its own",
        rich_help_panel=_COMPUTING,
    ),
]
StillOption = Annotated[
    float | None,
    typer.Option(
        "--skip-still",
        metavar="SIMILARITY",
        help="skip frames of a still scene, from this similarity (0.98) on",
        rich_help_panel=_TIME,
    ),
]
LiveOption = Annotated[
    bool,
    typer.Option(
        "--live",
        help="play a file or a clip at its own rate, as a camera does; late frames are dropped",
        rich_help_panel=_TIME,
    ),
]
RateOption = Annotated[
    float | None, typer.Option(help="frames per second of an image folder or a synthetic clip", rich_help_panel=_TIME)
]
DegradeOption = Annotated[
    bool,
    typer.Option(
        "--degrade/--no-degrade",
        help="let a live stream that misses its budget do less for each frame",
        rich_help_panel=_TIME,
    ),
]
SeedOption = Annotated[int, typer.Option(help="the seed of the noise", rich_help_panel=_MODEL)]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:1", show_default="cpu", rich_help_panel=_COMPUTING),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"what the model computes in: {', '.join(DTYPE_NAMES)}",
        show_default="float32",
        rich_help_panel=_COMPUTING,
    ),
]
GraphsOption = Annotated[
    bool | None,
    typer.Option(
        "--graphs/--no-graphs",
        help="replay the model as CUDA graphs",
        show_default="yes on a GPU",
        rich_help_panel=_COMPUTING,
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"compile the model with {' or '.join(BACKENDS)}",
        show_default="eager mode",
        rich_help_panel=_COMPUTING,
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        help="PyTorch's threads for the model", show_default="as many as there are cores", rich_help_panel=_COMPUTING
    ),
]
CodecThreadsOption = Annotated[
    int | None,
    typer.Option(
        help="threads of a video's decoder and encoder",
        show_default="the decoder's own, and 1",
        rich_help_panel=_COMPUTING,
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="replace what is at the sink", rich_help_panel=_FRAMES)
]
DriftOption = Annotated[
    int | None,
    typer.Option(
        metavar="FRAMES",
        help="test instead whether the output drifts over so many frames, as 600",
        rich_help_panel=_DRIFT,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="with --drift: a directory for drift.html and drift.json", rich_help_panel=_DRIFT),
]
AsJsonOption = Annotated[
    bool,
    typer.Option("--json", help="print the report as one JSON object; with --page, address and process id first"),
]
