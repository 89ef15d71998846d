"""Measure images and video: likeness, texture, colour and movement of frames.

A frame is a NumPy array [H, W, C] or [H, W] (grey), uint8 or floating point in [0, 1]. All measures compute in float64
on the scale [0, 1], and refuse frames of unequal shapes with a ValueError.
"""

from whet.measure.frames.arrays import Frame, as_float
from whet.measure.frames.colour import distance, histogram
from whet.measure.frames.flow import MIN_SIDE, Flow, input_flow, warp_error
from whet.measure.frames.likeness import psnr, ssim
from whet.measure.frames.movement import flicker, repetition
from whet.measure.frames.texture import luminance, sharpness

__all__ = [
    "MIN_SIDE",
    "Flow",
    "Frame",
    "as_float",
    "distance",
    "flicker",
    "histogram",
    "input_flow",
    "luminance",
    "psnr",
    "repetition",
    "sharpness",
    "ssim",
    "warp_error",
]
