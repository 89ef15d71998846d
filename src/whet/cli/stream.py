"""Turn frames into frames within a budget, and say how well it went: whet stream."""

import re
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.cli.busy import INCONCLUSIVE
from whet.cli.counted_progress import counted_progress
from whet.cli.stream_drift import test_drift
from whet.cli.stream_page import (
    DEFAULT_PORT,
    HostOption,
    KeysOption,
    OriginsOption,
    PageAddress,
    PageOption,
    PortOption,
    serve_page,
)
from whet.cli.units import seconds
from whet.errors import OptionError, TargetError, WhetError
from whet.models.diffusion.backends import BACKENDS
from whet.models.diffusion.few_steps import SAMPLERS
from whet.models.diffusion.guidance import KINDS, Guidance
from whet.models.diffusion.placement import DTYPES
from whet.network import LOOPBACK
from whet.streamer.frames import FITS, MAX_SIDE, Fit, Size, check_size
from whet.streamer.report import StreamReport
from whet.streamer.sinks import open_sink
from whet.streamer.sources import Source, open_source, paced
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.terminal import show_report
from whet.streamer.tuned import threads_of_codec

DEFAULT_TARGET = "signs-stream"
_MISSED, _INTERRUPTED = 1, 130

_Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="a built-in name, a diffusion model's directory in diffusers' layout, FILE.py:FUNCTION of a "
        "StreamWorkload, or what whet tune made of one",
    ),
]
_Source = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="where frames come from: a video file, an image folder, camera, camera:1 or synthetic:FRAMES",
    ),
]
_Sink = Annotated[
    str, typer.Option(metavar="SINK", help="where answers go: a video file, a folder (ends with /), or null")
]
_Steps = Annotated[int | None, typer.Option(help="steps of the sampler a frame", show_default="4; 1 for signs-stream")]
_Sampler = Annotated[
    str | None, typer.Option(metavar="NAME", help=", ".join(SAMPLERS), show_default="that of the scheduler's settings")
]
_GuidanceKind = Annotated[
    str,
    typer.Option(
        metavar="KIND[:WEIGHT[:DELTA]]", help=f"how the output follows the prompt: {', '.join(KINDS)}, as self:1.5"
    ),
]
_Strength = Annotated[
    float | None,
    typer.Option(
        help="the share of all noise that a frame gets, above 0 to 1; more changes it more", show_default="0.5"
    ),
]
_Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="the prompt, for models with a text encoder")]
_Negative = Annotated[str, typer.Option("--negative-prompt", metavar="TEXT", help="what the output should not be")]
_Embeds = Annotated[
    Path | None,
    typer.Option("--prompt-embeds", metavar="FILE", help="a safetensors file with prompt_embeds, instead of a prompt"),
]
_SizeOption = Annotated[
    str | None,
    typer.Option(
        "--size", metavar="HEIGHTxWIDTH", help="the size of the frames that the model takes", show_default="its own"
    ),
]
_FitOption = Annotated[
    str, typer.Option("--fit", metavar="WAY", help=f"how frames of another aspect take that size: {', '.join(FITS)}")
]
_Budget = Annotated[
    str | None, typer.Option(metavar="TIME", help="how long a frame may take, as 40ms", show_default="no limit")
]
_Rolling = Annotated[
    bool, typer.Option("--rolling/--no-rolling", help="work on several frames at once, each at a step of its own")
]
_Still = Annotated[
    float | None,
    typer.Option(
        "--skip-still", metavar="SIMILARITY", help="skip frames of a still scene, from this similarity (0.98) on"
    ),
]
_Live = Annotated[
    bool,
    typer.Option("--live", help="play a file or a clip at its own rate, as a camera does; late frames are dropped"),
]
_Rate = Annotated[float | None, typer.Option(help="frames per second of an image folder or a synthetic clip")]
_Degrade = Annotated[
    bool,
    typer.Option("--degrade/--no-degrade", help="let a live stream that misses its budget do less for each frame"),
]
_Seed = Annotated[int, typer.Option(help="the seed of the noise")]
_Device = Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:1", show_default="cpu")]
_Dtype = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"what the model computes in: {', '.join(DTYPES)}", show_default="float32"),
]
_Graphs = Annotated[
    bool | None,
    typer.Option("--graphs/--no-graphs", help="replay the model as CUDA graphs", show_default="yes on a GPU"),
]
_Backend = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"compile the model with {' or '.join(BACKENDS)}", show_default="eager mode"),
]
_Threads = Annotated[
    int | None, typer.Option(help="PyTorch's threads for the model", show_default="as many as there are cores")
]
_CodecThreads = Annotated[
    int | None, typer.Option(help="threads of a video's decoder and encoder", show_default="the decoder's own, and 1")
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace what is at the sink")]
_Drift = Annotated[
    int | None,
    typer.Option(metavar="FRAMES", help="test instead whether the output drifts over so many frames, as 600"),
]
_Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="with --drift: a directory for drift.html and drift.json")
]
_AsJson = Annotated[
    bool,
    typer.Option("--json", help="print the report as one JSON object; with --page, address and process id first"),
]


def stream(
    target: _Target = DEFAULT_TARGET,
    source: _Source = "synthetic",
    sink: _Sink = "null",
    steps: _Steps = None,
    sampler: _Sampler = None,
    guidance: _GuidanceKind = "none",
    strength: _Strength = None,
    prompt: _Prompt = None,
    negative_prompt: _Negative = "",
    prompt_embeds: _Embeds = None,
    size: _SizeOption = None,
    fit: _FitOption = "crop",
    budget: _Budget = None,
    rolling: _Rolling = True,
    skip_still: _Still = None,
    live: _Live = False,
    rate: _Rate = None,
    degrade: _Degrade = True,
    seed: _Seed = 0,
    device: _Device = None,
    dtype: _Dtype = None,
    graphs: _Graphs = None,
    backend: _Backend = None,
    threads: _Threads = None,
    codec_threads: _CodecThreads = None,
    overwrite: _Overwrite = False,
    drift: _Drift = None,
    out: _Out = None,
    page: PageOption = False,
    host: HostOption = LOOPBACK,
    port: PortOption = DEFAULT_PORT,
    api_key: KeysOption = None,
    cors_origin: OriginsOption = None,
    as_json: _AsJson = False,
) -> None:
    """Turn frames into frames with a model, and report times, rates and whether the budget was held.

    A video file or a folder is turned whole, as fast as the model can. A camera, or anything with --live, plays at its
    own rate. The newest frame is always the next, and frames that the model has no time for are dropped and counted.
    With --page, a page in the browser takes the frames of its camera and shows the answers, until Ctrl-C.
    The exit code is 1 where a budget was missed or the output drifts, and 3 where a busy machine or the input leaves it
    open.
    """
    options = StreamOptions(
        size=None if size is None else _size(size),
        steps=steps,
        sampler=sampler,
        strength=strength,
        guidance=_guidance(guidance),
        prompt=prompt,
        negative=negative_prompt,
        prompt_embeds=prompt_embeds,
        rolling=rolling,
        seed=seed,
        device=device,
        dtype=dtype,
        graphs=graphs,
        backend=backend,
        budget_s=None if budget is None else seconds("--budget", budget),
        degrades=degrade,
        stillness=skip_still,
        fit=_fit(fit),
        threads=threads,
    )
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a video is finished then too
    if page:
        if sink != "null" or overwrite or drift is not None or out is not None or live:
            raise OptionError(
                "--page shows the answers in the browser; leave --sink, --overwrite, --live, --drift and --out out"
            )
        where = PageAddress(host, port, tuple(api_key or ()), tuple(cors_origin or ()))
        serve_page(target, source, options, where, console, rate=rate, as_json=as_json)
        return
    if cors_origin or host != LOOPBACK or port != DEFAULT_PORT:
        raise OptionError("--host, --port and --cors-origin go with --page")
    if drift is not None:
        if sink != "null" or overwrite or live or budget is not None or skip_still is not None:
            raise OptionError(
                "--drift tests the output instead; leave --sink, --overwrite, --live, --budget and --skip-still out"
            )
        raise typer.Exit(test_drift(console, target, source, drift, options, rate=rate, out=out, as_json=as_json))
    if out is not None:
        raise OptionError("--out goes with --drift; a stream's answers go to --sink")
    codec = threads_of_codec(target, codec_threads)
    report = _run(
        console, target, source, sink, options, codec, live=live, rate=rate, overwrite=overwrite, as_json=as_json
    )
    _leave(report)


def _run(
    console: Console,
    target: str,
    source: str,
    sink: str,
    options: StreamOptions,
    codec_threads: int | None,
    *,
    live: bool,
    rate: float | None,
    overwrite: bool,
    as_json: bool,
) -> StreamReport:
    """Run the stream with a bar of its frames, and show the report, also where it ended early."""

    def opened(frame_size: Size) -> Source:
        found = open_source(source, size=frame_size, fit=options.fit, rate=rate, threads=codec_threads)
        return paced(found) if live and not found.is_live else found

    if sink != "null" and not source.startswith(("camera", "synthetic")) and _is_same(Path(source), Path(sink)):
        raise OptionError(f"--sink {sink} is the source itself, which would be lost; name another place")
    # A mistake in the sink or the source shows before the model is loaded. A camera takes long to open twice.
    to = open_sink(sink, overwrite=overwrite, threads=codec_threads)
    if not source.startswith("camera"):
        open_source(source, rate=rate).close()
    progress = counted_progress(console)
    with Stream(target, opened, options) as running, progress:
        bar = progress.begin("frames", running.source.num_frames)
        try:
            report = running.run(to, on_answer=lambda _: progress.advance(bar))
        except WhetError:
            if running.timings.counts["arrived"]:
                show_report(console if as_json else Console(), running.report())
            raise
    show_report(console if as_json else Console(), report)
    if as_json:
        print(report.to_json(indent=None), end="", flush=True)
    return report


def _is_same(source: Path, sink: Path) -> bool:
    """Return whether both are one file or one folder."""
    try:
        return source.samefile(sink)
    except (OSError, ValueError):  # one of them is not there
        return False


def _leave(report: StreamReport) -> None:
    """Leave with an exit code of its own where the stream was interrupted, was of a damaged source, or was too slow."""
    if report.interrupted:
        raise typer.Exit(_INTERRUPTED)
    if report.error:
        raise TargetError(f"{report.error}; what could be read was written whole")
    if report.verdict == "missed":
        raise typer.Exit(_MISSED)
    if report.verdict == "inconclusive" and report.busy:
        raise typer.Exit(INCONCLUSIVE)


def _size(text: str) -> Size:
    """Return height and width of "256x512", or of one side of a square."""
    found = re.fullmatch(r"\s*([0-9]{1,5})\s*(?:[x×]\s*([0-9]{1,5})\s*)?", text)
    height, width = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
        raise OptionError(
            f"--size {text!r}: write height and width as 256x512, or one number for a square; at most {MAX_SIDE}"
        )
    return height, width


def _fit(text: str) -> Fit:
    """Return a way to take another aspect."""
    check_size(None, text)  # type: ignore[arg-type]
    return text  # type: ignore[return-value]


def _guidance(text: str) -> Guidance:
    """Return the guidance of "self:1.5:0.9"."""
    kind, *numbers = text.strip().split(":")
    try:
        weight, delta = [*map(float, numbers), *(1.0, 1.0)[len(numbers) :]]
    except ValueError:
        raise OptionError(
            f"--guidance {text!r}: write KIND, KIND:WEIGHT or KIND:WEIGHT:DELTA, as self:1.5:0.9"
        ) from None
    return Guidance(kind, weight, delta)  # type: ignore[arg-type]
