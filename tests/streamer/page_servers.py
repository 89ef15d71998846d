"""Servers of the page with fake models, and clients that speak its protocol."""

import io
import json
import threading
from contextlib import contextmanager

import numpy as np
import PIL.Image
from websockets.sync.client import connect

from whet.errors import OptionError
from whet.models.diffusion.guidance import Guidance
from whet.streamer.http.header import Header, parse
from whet.streamer.http.server import PageServer
from whet.streamer.http.session import Served
from whet.streamer.http.settings import PageSettings
from whet.streamer.model import FrameModel
from whet.streamer.sources import open_source
from whet.streamer.stream import StreamOptions
from whet.streamer.targets import Opened
from whet.ui.network import LOOPBACK, bind

SIZE = (16, 24)


class Negative:
    """Be a step that returns the negative of each frame, waits at a gate, and counts its calls and resets."""

    def __init__(self):
        self.num_begun, self.num_calls, self.num_resets = 0, 0, 0
        self.threads = set()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, frame):
        self.threads.add(threading.current_thread().name)
        self.num_begun += 1
        self.gate.wait(30)
        self.num_calls += 1
        return 1 - frame

    def reset(self):
        self.num_resets += 1


def opened(step, **fields):
    return Opened("a <model>", FrameModel(step), SIZE, **fields)


@contextmanager
def serving(step=None, *, options=None, source="synthetic:12", reports=None, port=0, model=None, **settings):
    """Serve a page on a port of its own, and hand out the server."""
    options = options or StreamOptions()
    served = Served(
        model or opened(step or Negative()), options, lambda size: open_source(source, size=size, rate=200), source
    )
    bound = bind(LOOPBACK, port)
    server = PageServer(
        served, PageSettings(**settings), bound, (lambda _: None) if reports is None else reports.append
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Viewer:
    """Be a page: send frames, and take what the server says.

    Args:
        server: The server.
        source: Where frames come from.
        key: The API key.
        starts: Whether the first message is sent.
    """

    def __init__(self, server, source="camera", key="", *, starts=True, **options):
        address = server.url.replace("http", "ws") + "/stream"
        self.socket = connect(address, open_timeout=30, max_size=None, **options).__enter__()
        if starts:
            self.say(type="start", source=source, key=key)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def say(self, **message):
        self.socket.send(json.dumps(message))

    def send(self, sequence, level=0, *, size=SIZE, captured_ms=None, jpeg=None):
        """Send a frame of one grey level, or some bytes as its JPEG."""
        header = Header("frame", sequence, 1000.0 * sequence if captured_ms is None else captured_ms)
        self.socket.send(header.pack() + (grey_jpeg(level, size) if jpeg is None else jpeg))

    def next(self):
        """Return the next message: a dict, or a header and a picture. An answer is shown at once."""
        message = self.socket.recv(timeout=30)
        if isinstance(message, str):
            return json.loads(message)
        header, jpeg = parse(message)
        if header.kind != "input":
            self.say(type="shown")
        return header, np.asarray(PIL.Image.open(io.BytesIO(jpeg)))

    def until(self, kind):
        """Return the next text message of a type."""
        while True:
            message = self.next()
            if isinstance(message, dict) and message["type"] == kind:
                return message

    def answer(self):
        """Return the header and the picture of the next answer."""
        while True:
            message = self.next()
            if not isinstance(message, dict) and message[0].kind != "input":
                return message


def grey_jpeg(level, size=SIZE):
    file = io.BytesIO()
    PIL.Image.new("RGB", (size[1], size[0]), (level,) * 3).save(file, "JPEG", quality=95)
    return file.getvalue()


def guided(step, **fields):
    """Return a model that takes prompts and guidance, and keeps them in `step.asked`."""
    step.asked = []

    def prepare_prompt(prompt, negative):
        if prompt == "bad":
            raise OptionError("this prompt is bad; write another one")
        if prompt == "worse":
            raise KeyError("worse")  # as a tokenizer may
        return lambda: step.asked.append((prompt, negative))

    def prepare_guidance(guidance: Guidance):
        if guidance.kind == "full":
            raise OptionError("this model takes no full guidance; choose self")
        return lambda: step.asked.append(guidance)

    return opened(step, prepare_prompt=prepare_prompt, prepare_guidance=prepare_guidance, **fields)
