"""Tune a stream of frames: what the tuner's kind for a stream does."""

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from whet.artefact import load
from whet.comparison.claim import Claim
from whet.comparison.run import Run
from whet.comparison.schedules import Rounds, Schedule
from whet.comparison.variant import Variant
from whet.errors import OptionError, TargetError, WhetError
from whet.measure.stats import mean_interval
from whet.recipe import Recipe, Step
from whet.stream_tuner import plan
from whet.stream_tuner.clips import TUNING, Clip, Clips, clips_of_source
from whet.stream_tuner.denoiser import JudgedStream, TunedCall, capture, tune_call
from whet.stream_tuner.facts import StreamFacts, facts_of
from whet.stream_tuner.finals import Finalist, budget_run, others_of, write_finalist
from whet.stream_tuner.quality import Figures, answers, change, measured, with_truth
from whet.stream_tuner.settings import Bench, Setting
from whet.stream_tuner.sides import FRAMES, side
from whet.stream_tuner.techniques import STREAM_TABLE, TENTH, setting_of
from whet.streamer.replaced import Replacements
from whet.streamer.sources import open_source, refuse_live
from whet.streamer.stream import StreamOptions
from whet.streamer.target_name import is_tuned
from whet.streamer.targets import open_target
from whet.streamer.tuned import TunedModel, read_tuned
from whet.technique import AnyTechnique
from whet.techniques import TABLE
from whet.techniques.names import check_excluded
from whet.tuner.asked import Asked
from whet.tuner.kind import Kind, Work
from whet.tuner.kind_options import KindWord

_MODELS_SHARE = 0.5  # of the budget, for the models
_FINALS_SHARE = 0.25  # of the budget, kept for the proof
_LEAST_S = 60.0  # of the budget, from which models are tuned a second time
_CLIP_FRAMES = 48
_STRICTER = 0.1  # of the allowed drop, for models that are tuned a second time
