"""Test whether a stream drifts: whether its output leaves its input over hundreds of frames, stops, or runs in a loop.

`DriftMeter` reads pairs of an output and its input, `calibrate` says what real frames show without any drift, and
`judge` compares the two. `page` shows the result.
"""
