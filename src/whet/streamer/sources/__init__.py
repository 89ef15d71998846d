"""Read frames: from video files, folders of images and cameras, or made up."""

from whet.streamer.sources.opening import open_source
from whet.streamer.sources.pacing import paced
from whet.streamer.sources.source import Source, first_frames, refuse_live
from whet.streamer.target_name import SOURCES as KINDS

__all__ = ["KINDS", "Source", "first_frames", "open_source", "paced", "refuse_live"]
