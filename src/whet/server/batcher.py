"""Forward imports of `DynamicBatcher` from its first place; see whet.moved."""

from whet.moved import moved

__getattr__ = moved(__name__, {"DynamicBatcher": "whet.batching.batcher"})
