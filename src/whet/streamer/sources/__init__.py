"""Read frames: from video files, folders of images and cameras, or made up."""

from whet.streamer.sources.opening import KINDS, open_source
from whet.streamer.sources.pacing import paced
from whet.streamer.sources.source import Source

__all__ = ["KINDS", "Source", "open_source", "paced"]
