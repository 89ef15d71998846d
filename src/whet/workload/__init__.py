"""What can be measured and made fast: calls of a model, steps of a training, answers of a decoder, frames of a stream.

`InferenceWorkload` (also under its first name, `Workload`) and `TrainingWorkload` can be compared and tuned.
`GenerationWorkload` and `StreamWorkload` say what a decoder and a stream are measured by.
"""

from whet.slo import Slo
from whet.workload.examination import ExaminedWorkload, examine, is_near
from whet.workload.generation import GenerationWorkload
from whet.workload.inference import InferenceWorkload, samples_of
from whet.workload.quality import Predict, Quality, Score, measure_quality, measure_score
from whet.workload.stream import StreamWorkload
from whet.workload.training import TrainingWorkload

Workload = InferenceWorkload
"""The first name of `InferenceWorkload`, which goes on working."""

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
]
