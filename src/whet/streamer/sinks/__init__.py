"""Write frames: to a video file, to a folder of images, or nowhere."""

from whet.streamer.sinks.opening import open_sink
from whet.streamer.sinks.sink import NullSink, Sink
from whet.streamer.target_name import SINKS as KINDS

__all__ = ["KINDS", "NullSink", "Sink", "open_sink"]
