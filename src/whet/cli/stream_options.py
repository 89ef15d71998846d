"""Define the options of `whet stream`, by the panels of its help."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from whet.models.diffusion.guidance import KINDS
from whet.models.diffusion.names import BACKENDS, DTYPE_NAMES, SAMPLER_NAMES
from whet.streamer.frames import FITS

_frames = partial(typer.Option, rich_help_panel="Frames in and out")
_time = partial(typer.Option, rich_help_panel="Time and rate")
_model = partial(typer.Option, rich_help_panel="What a diffusion model draws")
_computing = partial(typer.Option, rich_help_panel="How it is computed")
_drift = partial(typer.Option, rich_help_panel="Test of drift")
_page = partial(typer.Option, rich_help_panel="A page in the browser")

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="a built-in name, a diffusion model's directory in diffusers' layout, FILE.py:FUNCTION of a "
        "StreamWorkload, or what whet tune made of one",
    ),
]
Source = Annotated[
    str,
    _frames(
        metavar="SOURCE",
        help="where frames come from: a video file, an image folder, camera, camera:1 or synthetic:FRAMES",
    ),
]
Sink = Annotated[str, _frames(metavar="SINK", help="where answers go: a video file, a folder (ends with /), or null")]
Steps = Annotated[int | None, _model(help="steps of the sampler a frame", show_default="4; 1 for signs-stream")]
Sampler = Annotated[
    str | None, _model(metavar="NAME", help=", ".join(SAMPLER_NAMES), show_default="that of the scheduler's settings")
]
Guidance = Annotated[
    str,
    _model(
        metavar="KIND",
        help=f"how the output follows the prompt: {', '.join(KINDS)}; with a weight, and a delta, as self:1.5:0.9",
    ),
]
Strength = Annotated[
    float | None,
    _model(help="the share of all noise that a frame gets, above 0 to 1; more changes it more", show_default="0.5"),
]
Prompt = Annotated[str | None, _model(metavar="TEXT", help="the prompt, for models with a text encoder")]
Negative = Annotated[str, _model("--negative-prompt", metavar="TEXT", help="what the output should not be")]
Embeds = Annotated[
    Path | None,
    _model("--prompt-embeds", metavar="FILE", help="a safetensors file with prompt_embeds, instead of a prompt"),
]
Size = Annotated[
    str | None,
    _model(
        "--size", metavar="HEIGHTxWIDTH", help="the size of the frames that the model takes", show_default="its own"
    ),
]
Fit = Annotated[
    str, _model("--fit", metavar="WAY", help=f"how frames of another aspect take that size: {', '.join(FITS)}")
]
Budget = Annotated[
    str | None, _time(metavar="TIME", help="how long a frame may take, as 40ms", show_default="no limit")
]
Rolling = Annotated[
    bool, _computing("--rolling/--no-rolling", help="work on several frames at once, each at a step of its own")
]
Still = Annotated[
    float | None,
    _time("--skip-still", metavar="SIMILARITY", help="skip frames of a still scene, from this similarity (0.98) on"),
]
Live = Annotated[
    bool, _time("--live", help="play a file or a clip at its own rate, as a camera does; late frames are dropped")
]
Rate = Annotated[float | None, _time(help="frames per second of an image folder or a synthetic clip")]
Degrade = Annotated[
    bool, _time("--degrade/--no-degrade", help="let a live stream that misses its budget do less for each frame")
]
Seed = Annotated[int, _model(help="the seed of the noise")]
Device = Annotated[str | None, _computing(metavar="DEVICE", help="cpu, cuda or cuda:1", show_default="cpu")]
Dtype = Annotated[
    str | None,
    _computing(metavar="NAME", help=f"what the model computes in: {', '.join(DTYPE_NAMES)}", show_default="float32"),
]
Graphs = Annotated[
    bool | None, _computing("--graphs/--no-graphs", help="replay the model as CUDA graphs", show_default="yes on a GPU")
]
Backend = Annotated[
    str | None,
    _computing(metavar="NAME", help=f"compile the model with {' or '.join(BACKENDS)}", show_default="eager mode"),
]
Threads = Annotated[
    int | None, _computing(help="PyTorch's threads for the model", show_default="as many as there are cores")
]
CodecThreads = Annotated[
    int | None, _computing(help="threads of a video's decoder and encoder", show_default="the decoder's own, and 1")
]
Overwrite = Annotated[bool, _frames("--overwrite", help="replace what is at the sink")]
Drift = Annotated[
    int | None, _drift(metavar="FRAMES", help="test instead whether the output drifts over so many frames, as 600")
]
Out = Annotated[Path | None, _drift(metavar="DIR", help="with --drift: a directory for drift.html and drift.json")]
AsJson = Annotated[
    bool, typer.Option("--json", help="print the report as one JSON object; with --page, address and process id first")
]
Page = Annotated[
    bool, _page("--page", help="serve a page that takes frames of the browser's camera and shows the answers")
]
Host = Annotated[str, _page(metavar="ADDRESS", help="with --page: the address to listen on; 0.0.0.0 for all networks")]
Port = Annotated[int, _page(help="with --page: the port to listen on; 0 takes any free one")]
Keys = Annotated[
    list[str] | None,
    _page(
        metavar="KEY", envvar="WHET_API_KEY", help="with --page: viewers must give this key; may be given several times"
    ),
]
Origins = Annotated[
    list[str] | None, _page(metavar="ORIGIN", help="with --page: let web pages of this origin connect too; * lets all")
]
