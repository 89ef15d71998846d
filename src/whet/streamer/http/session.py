"""Run the stream of one viewer: the page's frames go in, answers and figures go out, and changes hold at once."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from whet.errors import RequestError, WhetError, reason
from whet.models.diffusion.guidance import KINDS, Guidance
from whet.streamer.drift.live import LiveDrift
from whet.streamer.frames import Frame, Size
from whet.streamer.http.header import parse
from whet.streamer.http.messages import GuidanceChange, Message, PromptChange, Shown
from whet.streamer.http.page_outlet import PageOutlet
from whet.streamer.http.web_source import WebSource
from whet.streamer.report import StreamReport
from whet.streamer.sources import Source, paced
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import Change, Opened

_NUM_WAITING = 1  # answers that wait for the page; a newer one takes the place of one that waits
_NUM_LEVELS = 8  # changes of the level that the page shows

Send = Callable[[str | bytes], None]


@dataclass
class Served:
    """Hold the model that one viewer after the other uses, and what holds for it now.

    Attributes:
        opened: The model. It is called in one thread only.
        own_source: Opens the server's own source at a size.
        on_applied: Called in the model's thread once a prompt or a guidance holds, with its message's type.
        prompt: The prompt; None where none was given.
        steps: Steps of the sampler at the best level; None where the model has no such choice.
    """

    opened: Opened
    options: StreamOptions
    own_source: Callable[[Size], Source]
    source_name: str
    on_applied: Callable[[str], None] = lambda what: None

    def __post_init__(self) -> None:
        opened, options = self.opened, self.options
        self.options = replace(options, warms_up=False)
        self.prompt, self.negative, self.guidance = options.prompt, options.negative, options.guidance
        self.steps = opened.model.steps
        self.opened = replace(
            opened,
            prepare_prompt=self._noting("prompt", opened.prepare_prompt),
            prepare_guidance=self._noting("guidance", opened.prepare_guidance),
        )

    def _noting(self, what: str, prepare: Callable[..., Change] | None) -> Callable[..., Change] | None:
        """Return what prepares a prompt or a guidance as before, and notes it once it holds."""
        if prepare is None:
            return None

        def prepared(*given: Any) -> Change:
            change = prepare(*given)

            def changed() -> None:
                change()
                if what == "prompt":
                    self.prompt, self.negative = given
                else:
                    (self.guidance,) = given
                self.on_applied(what)

            return changed

        return prepared

    def facts(self) -> dict[str, Any]:
        """Return what the page shows of the model."""
        opened, guidance = self.opened, self.guidance
        return {
            "model": opened.name,
            "height": opened.size[0],
            "width": opened.size[1],
            "steps": self.steps,
            "sampler": opened.sampler,
            "own_source": self.source_name,
            "prompt": None if opened.prepare_prompt is None else self.prompt or "",
            "negative": self.negative,
            "guidance": None if opened.prepare_guidance is None else vars(guidance),
            "guidance_kinds": list(KINDS),
        }


class Session:
    """Run a stream for a viewer.

    `run` blocks, in the model's thread. Everything else returns at once, may be called from any thread, and also before
    `run` has begun.

    Args:
        kind: Where frames come from: the browser's "camera", or the "server".
        send: Sends a message to the page, text or binary. Any thread may call it, and it never waits.
    """

    def __init__(self, served: Served, kind: Literal["camera", "server"], send: Send) -> None:
        self._served, self._send = served, send
        self._web = WebSource(served.opened.size, self._drop) if kind == "camera" else None
        self._drift = LiveDrift()
        self._outlet = PageOutlet(self._web, self._drift, send)
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._changing: set[str] = set()
        self._is_ending = False

    def run(self) -> StreamReport | None:
        """Run the stream to its end, and return its report; None where it ended before it began.

        The page is told of an end that it did not ask for.
        """
        try:
            stream = self._begin()
        except WhetError as error:
            self._tell("ended", why=str(error), is_error=True)
            return None
        if stream is None:
            return None
        try:
            with stream:
                report = stream.deliver(self._outlet, num_waiting=_NUM_WAITING)
            if not self._is_ending:
                self._tell("ended", why="the source has ended", is_error=False)
        except WhetError as error:
            report = stream.report()
            self._tell("ended", why=str(error), is_error=True)
        return report

    def close(self) -> None:
        """End the stream after the frame that is being computed."""
        with self._lock:
            self._is_ending = True
            stream = self._stream
        self._outlet.close()
        if self._web is not None:
            self._web.close()
        if stream is not None:
            stream.close()

    def take_frame(self, message: bytes) -> None:
        """Take a frame of the browser's camera.

        Raises:
            RequestError: The message is no such frame.
        """
        header, jpeg = parse(message)
        if self._web is None or header.kind != "frame":
            raise RequestError("the stream does not take frames of the browser's camera")
        self._web.offer(header, jpeg)

    def take(self, message: Message) -> None:
        """Do what a text message of the page says.

        Raises:
            RequestError: The stream has begun already.
        """
        match message:
            case Shown():
                self._outlet.shown()
            case PromptChange() | GuidanceChange():
                self._begin_change(message)
            case _:
                raise RequestError("the stream has begun already; connect again for another one")

    def figures(self) -> str | None:
        """Return the figures so far, as a message; None before the stream runs."""
        with self._lock:
            stream = self._stream
        if stream is None:
            return None
        report, drift = stream.report(), self._drift.figures()
        return _message(
            "figures",
            drift=None if drift is None else {name: vars(moved) for name, moved in drift.items()},
            counts=report.counts,
            problems=report.problems,
            frame=None if report.frame is None else vars(report.frame),
            model=None if report.model is None else vars(report.model),
            sent=None if report.latency is None else vars(report.latency),
            budget_s=report.budget_s,
            late_share=report.late_share,
            level=report.ended_at,
            levels=report.levels[-_NUM_LEVELS:],
            has_steps=self._served.steps is not None,
        )

    def _begin(self) -> Stream | None:
        """Return the stream; None where the viewer has gone already."""
        if self._is_ending:
            return None
        served, web = self._served, self._web
        served.on_applied = self._settle

        def source(size: Size) -> Source:
            return paced(served.own_source(size)) if web is None else web

        stream = Stream(served.opened, source, served.options, on_taken=self._next)
        with self._lock:
            self._stream = stream
            is_ending = self._is_ending
        if is_ending:
            stream.close()
            return None
        self._tell("ready", **served.facts(), budget_s=stream.timings.budget_s)
        return stream

    def _begin_change(self, message: PromptChange | GuidanceChange) -> None:
        """Begin a change in a thread of its own, since encoding a text takes long. None waits for one of its kind."""
        with self._lock:
            stream, what = self._stream, message.type
            is_busy = stream is None or what in self._changing
            if not is_busy:
                self._changing.add(what)
        if stream is None or is_busy:
            self._tell("note", text="The stream is busy with what was asked for before; try again in a moment.")
            return
        threading.Thread(target=self._change, args=(stream, message), name="whet-stream-change", daemon=True).start()

    def _change(self, stream: Stream, message: PromptChange | GuidanceChange) -> None:
        try:
            if isinstance(message, PromptChange):
                stream.change_prompt(message.prompt, message.negative)
            else:
                stream.change_guidance(Guidance(message.kind, message.weight, message.delta))
        except Exception as error:  # noqa: BLE001 - text encoders raise errors of all kinds; the stream goes on as before
            self._settle(message.type, str(error) if isinstance(error, WhetError) else reason(error))

    def _settle(self, what: str, error: str = "") -> None:
        """End a change: tell the page which prompt and guidance hold, and what was wrong with others."""
        with self._lock:
            self._changing.discard(what)
        if not error:
            self._drift.restart()  # the output is to look different
        facts = self._served.facts()
        held = {name: facts[name] for name in ("prompt", "negative", "guidance")}
        self._tell("settings", **held, error=error)

    def _next(self, frame: Frame) -> None:
        """Ask the page for its next frame. It is called once the model has been called for a frame."""
        if self._web is not None and (header := self._web.header_of(frame.index)) is not None:
            self._tell("next", sequence=header.sequence, why="")

    def _drop(self, sequence: int, why: str) -> None:
        self._tell("next", sequence=sequence, why=why)

    def _tell(self, kind: str, **fields: Any) -> None:
        self._send(_message(kind, **fields))


def _message(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})
