"""Describe what can be measured and made fast: model calls, training steps, a decoder's answers, a stream's frames.

`InferenceWorkload` (also under its first name, `Workload`) and `TrainingWorkload` can be compared and tuned.
`GenerationWorkload` and `StreamWorkload` describe a decoder and a stream that are to be measured.
"""

from whet.core.slo import Slo
from whet.core.workload.examination import ExaminedWorkload, examine, is_near
from whet.core.workload.generation import GenerationWorkload
from whet.core.workload.hints import unseen_inputs
from whet.core.workload.inference import InferenceWorkload, samples_of
from whet.core.workload.quality import Predict, Quality, Score, measure_quality, measure_score
from whet.core.workload.stream import StreamWorkload
from whet.core.workload.training import TrainingWorkload

Workload = InferenceWorkload
"""`Workload` was the first name of `InferenceWorkload` and still works."""

__all__ = [
    "ExaminedWorkload",
    "GenerationWorkload",
    "InferenceWorkload",
    "Predict",
    "Quality",
    "Score",
    "Slo",
    "StreamWorkload",
    "TrainingWorkload",
    "Workload",
    "examine",
    "is_near",
    "measure_quality",
    "measure_score",
    "samples_of",
    "unseen_inputs",
]
