"""Turn frames into frames within a budget, and say how well it went: whet stream."""

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from whet.cli import stream_options as option
from whet.cli.busy import INCONCLUSIVE
from whet.cli.exit_codes import INTERRUPTED
from whet.errors import OptionError, TargetError, WhetError
from whet.measure.device_names import check_device_name
from whet.measure.fast_import import large_imports
from whet.models.diffusion.guidance import Guidance
from whet.models.diffusion.names import (
    check_backend_name,
    check_dtype,
    check_sampler,
    check_strength,
)
from whet.streamer.frames import MAX_SIDE, Size, check_size
from whet.streamer.http.settings import DEFAULT_PORT, PageSettings
from whet.streamer.target_name import check_sink, check_stream, source_kind
from whet.ui.network import LOOPBACK, checked_port, is_loopback
from whet.ui.units import seconds

if TYPE_CHECKING:
    from rich.console import Console

    from whet.streamer.report import StreamReport
    from whet.streamer.sources import Source
    from whet.streamer.stream import StreamOptions

DEFAULT_TARGET = "signs-stream"
_MISSED = 1


NAMES = {"target": check_stream}
"""What checks a parameter as it was typed; see typed.py."""


def stream(
    target: option.Target = DEFAULT_TARGET,
    source: option.Source = "synthetic",
    sink: option.Sink = "null",
    steps: option.Steps = None,
    sampler: option.Sampler = None,
    guidance: option.Guidance = "none",
    strength: option.Strength = None,
    prompt: option.Prompt = None,
    negative_prompt: option.Negative = "",
    prompt_embeds: option.Embeds = None,
    size: option.Size = None,
    fit: option.Fit = "crop",
    budget: option.Budget = None,
    rolling: option.Rolling = True,
    skip_still: option.Still = None,
    live: option.Live = False,
    rate: option.Rate = None,
    degrade: option.Degrade = True,
    seed: option.Seed = 0,
    device: option.Device = None,
    dtype: option.Dtype = None,
    graphs: option.Graphs = None,
    backend: option.Backend = None,
    threads: option.Threads = None,
    codec_threads: option.CodecThreads = None,
    overwrite: option.Overwrite = False,
    drift: option.Drift = None,
    out: option.Out = None,
    page: option.Page = False,
    host: option.Host = LOOPBACK,
    port: option.Port = DEFAULT_PORT,
    api_key: option.Keys = None,
    cors_origin: option.Origins = None,
    as_json: option.AsJson = False,
) -> None:
    """Turn frames into frames with a model, and report times, rates and whether the budget was held.

    A video file or a folder is turned whole, as fast as the model can. A camera, or anything with --live, plays at its
    own rate. The newest frame is always the next, and frames that the model has no time for are dropped and counted.
    With --page, a page in the browser takes the frames of its camera and shows the answers, until Ctrl-C.
    The exit code is 1 where a budget was missed or the output drifts, and 3 where a busy machine or the input leaves it
    open.
    """
    frame_size = None if size is None else _size(size)
    check_size(None, fit)  # type: ignore[arg-type]
    guided = _guidance(guidance)
    budget_s = None if budget is None else seconds("--budget", budget)
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
        fit=fit,  # type: ignore[arg-type]
        threads=threads,
    )
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a video is finished then too
    if page:
        settings = PageSettings(
            is_local=is_loopback(host), api_keys=tuple(api_key or ()), cors_origins=tuple(cors_origin or ())
        )
        serve_page(target, source, options, (host, port), settings, console, rate=rate, as_json=as_json)
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

    from whet.cli.counted_progress import CountedProgress
    from whet.streamer.sinks import open_sink
    from whet.streamer.sources import open_source, paced
    from whet.streamer.stream import Stream
    from whet.streamer.terminal import show_report

    def opened(frame_size: Size) -> "Source":
        found = open_source(source, size=frame_size, fit=options.fit, rate=rate, threads=codec_threads)
        return paced(found) if live else found

    if sink != "null" and not source.startswith(("camera", "synthetic")) and _is_same(Path(source), Path(sink)):
        raise OptionError(f"--sink {sink} is the source itself, which would be lost; name another place")
    # A mistake in the sink or the source shows before the model is loaded. A camera takes long to open twice.
    to = open_sink(sink, overwrite=overwrite, threads=codec_threads)
    if not source.startswith("camera"):
        open_source(source, rate=rate).close()
    progress = CountedProgress(console)
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
    try:
        return source.samefile(sink)
    except (OSError, ValueError):  # one of them is not there
        return False


def _leave(report: "StreamReport") -> None:
    """Leave with an exit code of its own where the stream was interrupted, was of a damaged source, or was too slow."""
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
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
