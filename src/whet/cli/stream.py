"""Turn frames into frames within a budget, and say how well it went: whet stream."""

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whet.cli.busy import INCONCLUSIVE
from whet.cli.stream_page import (
    DEFAULT_PORT,
    HostOption,
    KeysOption,
    OriginsOption,
    PageAddress,
    PageOption,
    PortOption,
)
from whet.errors import OptionError, TargetError, WhetError
from whet.fast_import import large_imports
from whet.models.diffusion.guidance import KINDS, Guidance
from whet.models.diffusion.names import (
    BACKENDS,
    DTYPE_NAMES,
    SAMPLER_NAMES,
    check_backend_name,
    check_device_name,
    check_dtype,
    check_sampler,
    check_strength,
)
from whet.network import LOOPBACK, checked_port
from whet.streamer.frames import FITS, MAX_SIDE, Fit, Size, check_size
from whet.streamer.target_name import check_sink, check_stream, source_kind
from whet.units import seconds

if TYPE_CHECKING:
    from rich.console import Console

    from whet.streamer.report import StreamReport
    from whet.streamer.sources import Source
    from whet.streamer.stream import StreamOptions

_FRAMES, _TIME = "Frames in and out", "Time and rate"
_MODEL, _COMPUTING = "What a diffusion model draws", "How it is computed"
_DRIFT = "Test of drift"
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
        rich_help_panel=_FRAMES,
    ),
]
_Sink = Annotated[
    str,
    typer.Option(
        metavar="SINK", help="where answers go: a video file, a folder (ends with /), or null", rich_help_panel=_FRAMES
    ),
]
_Steps = Annotated[
    int | None,
    typer.Option(help="steps of the sampler a frame", show_default="4; 1 for signs-stream", rich_help_panel=_MODEL),
]
_Sampler = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=", ".join(SAMPLER_NAMES),
        show_default="that of the scheduler's settings",
        rich_help_panel=_MODEL,
    ),
]
_GuidanceKind = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help=f"how the output follows the prompt: {', '.join(KINDS)}; with a weight, and a delta, as self:1.5:0.9",
        rich_help_panel=_MODEL,
    ),
]
_Strength = Annotated[
    float | None,
    typer.Option(
        help="the share of all noise that a frame gets, above 0 to 1; more changes it more",
        show_default="0.5",
        rich_help_panel=_MODEL,
    ),
]
_Prompt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="the prompt, for models with a text encoder", rich_help_panel=_MODEL)
]
_Negative = Annotated[
    str, typer.Option("--negative-prompt", metavar="TEXT", help="what the output should not be", rich_help_panel=_MODEL)
]
_Embeds = Annotated[
    Path | None,
    typer.Option(
        "--prompt-embeds",
        metavar="FILE",
        help="a safetensors file with prompt_embeds, instead of a prompt",
        rich_help_panel=_MODEL,
    ),
]
_SizeOption = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="HEIGHTxWIDTH",
        help="the size of the frames that the model takes",
        show_default="its own",
        rich_help_panel=_MODEL,
    ),
]
_FitOption = Annotated[
    str,
    typer.Option(
        "--fit",
        metavar="WAY",
        help=f"how frames of another aspect take that size: {', '.join(FITS)}",
        rich_help_panel=_MODEL,
    ),
]
_Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="how long a frame may take, as 40ms", show_default="no limit", rich_help_panel=_TIME
    ),
]
_Rolling = Annotated[
    bool,
    typer.Option(
        "--rolling/--no-rolling",
        help="work on several frames at once, each at a step of its own",
        rich_help_panel=_COMPUTING,
    ),
]
_Still = Annotated[
    float | None,
    typer.Option(
        "--skip-still",
        metavar="SIMILARITY",
        help="skip frames of a still scene, from this similarity (0.98) on",
        rich_help_panel=_TIME,
    ),
]
_Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="play a file or a clip at its own rate, as a camera does; late frames are dropped",
        rich_help_panel=_TIME,
    ),
]
_Rate = Annotated[
    float | None, typer.Option(help="frames per second of an image folder or a synthetic clip", rich_help_panel=_TIME)
]
_Degrade = Annotated[
    bool,
    typer.Option(
        "--degrade/--no-degrade",
        help="let a live stream that misses its budget do less for each frame",
        rich_help_panel=_TIME,
    ),
]
_Seed = Annotated[int, typer.Option(help="the seed of the noise", rich_help_panel=_MODEL)]
_Device = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:1", show_default="cpu", rich_help_panel=_COMPUTING),
]
_Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"what the model computes in: {', '.join(DTYPE_NAMES)}",
        show_default="float32",
        rich_help_panel=_COMPUTING,
    ),
]
_Graphs = Annotated[
    bool | None,
    typer.Option(
        "--graphs/--no-graphs",
        help="replay the model as CUDA graphs",
        show_default="yes on a GPU",
        rich_help_panel=_COMPUTING,
    ),
]
_Backend = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"compile the model with {' or '.join(BACKENDS)}",
        show_default="eager mode",
        rich_help_panel=_COMPUTING,
    ),
]
_Threads = Annotated[
    int | None,
    typer.Option(
        help="PyTorch's threads for the model", show_default="as many as there are cores", rich_help_panel=_COMPUTING
    ),
]
_CodecThreads = Annotated[
    int | None,
    typer.Option(
        help="threads of a video's decoder and encoder",
        show_default="the decoder's own, and 1",
        rich_help_panel=_COMPUTING,
    ),
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace what is at the sink", rich_help_panel=_FRAMES)]
_Drift = Annotated[
    int | None,
    typer.Option(
        metavar="FRAMES",
        help="test instead whether the output drifts over so many frames, as 600",
        rich_help_panel=_DRIFT,
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="with --drift: a directory for drift.html and drift.json", rich_help_panel=_DRIFT),
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
    frame_size = None if size is None else _size(size)
    fitted = _fit(fit)
    guided = _guidance(guidance)
    budget_s = None if budget is None else seconds("--budget", budget)
    check_stream(target)
    _check_model(sampler, strength, dtype, backend, device)
    source_kind(source, rate=rate)
    check_sink(sink)
    if prompt_embeds is not None and not prompt_embeds.is_file():
        raise OptionError(f"--prompt-embeds: there is no file {prompt_embeds}; give a safetensors file")
    writes = sink != "null" or overwrite or live
    _check_purpose(
        page=page,
        drift=drift is not None,
        page_options=bool(cors_origin) or host != LOOPBACK or port != DEFAULT_PORT,
        out=out is not None,
        for_page=writes,
        for_drift=writes or budget is not None or skip_still is not None,
    )
    checked_port(port, "--port")
    with large_imports():
        from rich.console import Console

        from whet.cli.stream_drift import test_drift
        from whet.cli.stream_page import serve_page
        from whet.streamer.stream import StreamOptions
        from whet.streamer.tuned import threads_of_codec
    options = StreamOptions(
        size=frame_size,
        steps=steps,
        sampler=sampler,
        strength=strength,
        guidance=guided,
        prompt=prompt,
        negative=negative_prompt,
        prompt_embeds=prompt_embeds,
        rolling=rolling,
        seed=seed,
        device=device,
        dtype=dtype,
        graphs=graphs,
        backend=backend,
        budget_s=budget_s,
        degrades=degrade,
        stillness=skip_still,
        fit=fitted,
        threads=threads,
    )
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a video is finished then too
    if page:
        where = PageAddress(host, port, tuple(api_key or ()), tuple(cors_origin or ()))
        serve_page(target, source, options, where, console, rate=rate, as_json=as_json)
        return
    if drift is not None:
        raise typer.Exit(test_drift(console, target, source, drift, options, rate=rate, out=out, as_json=as_json))
    codec = threads_of_codec(target, codec_threads)
    report = _run(
        console, target, source, sink, options, codec, live=live, rate=rate, overwrite=overwrite, as_json=as_json
    )
    _leave(report)


def _check_model(
    sampler: str | None, strength: float | None, dtype: str | None, backend: str | None, device: str | None
) -> None:
    """Check what is chosen for a model, as far as nothing has to be loaded for it."""
    if sampler is not None:
        check_sampler(sampler)
    if strength is not None:
        check_strength(strength)
    if dtype is not None:
        check_dtype(dtype)
    if backend is not None:
        check_backend_name(backend)
    if device is not None:
        check_device_name(device)


def _check_purpose(*, page: bool, drift: bool, page_options: bool, out: bool, for_page: bool, for_drift: bool) -> None:
    """Check that the options fit what is done: a page, a test of drift, or a stream from a source to a sink.

    Args:
        page: Whether a page is served.
        drift: Whether the drift is tested.
        page_options: Whether options of a page alone were given.
        out: Whether a directory for the report of the drift was given.
        for_page: Whether options were given that a page does not take.
        for_drift: Whether options were given that a test of drift does not take.
    """
    if page and (for_page or drift or out):
        raise OptionError(
            "--page shows the answers in the browser; leave --sink, --overwrite, --live, --drift and --out out"
        )
    if not page and page_options:
        raise OptionError("--host, --port and --cors-origin go with --page")
    if drift and for_drift:
        raise OptionError(
            "--drift tests the output instead; leave --sink, --overwrite, --live, --budget and --skip-still out"
        )
    if not drift and out:
        raise OptionError("--out goes with --drift; a stream's answers go to --sink")


def _run(
    console: "Console",
    target: str,
    source: str,
    sink: str,
    options: "StreamOptions",
    codec_threads: int | None,
    *,
    live: bool,
    rate: float | None,
    overwrite: bool,
    as_json: bool,
) -> "StreamReport":
    """Run the stream with a bar of its frames, and show the report, also where it ended early."""
    from rich.console import Console as Output

    from whet.cli.counted_progress import counted_progress
    from whet.streamer.sinks import open_sink
    from whet.streamer.sources import open_source, paced
    from whet.streamer.stream import Stream
    from whet.streamer.terminal import show_report

    def opened(frame_size: Size) -> "Source":
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
                show_report(console if as_json else Output(), running.report())
            raise
    show_report(console if as_json else Output(), report)
    if as_json:
        print(report.to_json(indent=None), end="", flush=True)
    return report


def _is_same(source: Path, sink: Path) -> bool:
    """Return whether both are one file or one folder."""
    try:
        return source.samefile(sink)
    except (OSError, ValueError):  # one of them is not there
        return False


def _leave(report: "StreamReport") -> None:
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
