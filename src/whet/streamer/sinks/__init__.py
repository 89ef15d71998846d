"""Write frames: to a video file, to a folder of images, or nowhere."""

from whet.streamer.sinks.opening import KINDS, open_sink
from whet.streamer.sinks.sink import NullSink, Sink

__all__ = ["KINDS", "NullSink", "Sink", "open_sink"]
