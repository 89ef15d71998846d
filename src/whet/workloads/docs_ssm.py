"""Define docs-ssm: a Mamba predicts the text of Python's language reference, token by token, as docs-gpt does.

`whet train` trained it from benchmarks/built_in_weights/docs_ssm.toml. Its directory is in the Hugging Face format.
"""

from pathlib import Path

from whet.core.workload import Workload
from whet.models.selective import load_selective
from whet.workloads import WEIGHTS
from whet.workloads.docs_gpt import predicting

NAME = "docs-ssm"


def build(weights: Path = WEIGHTS) -> Workload:
    """Return the workload: the windows of docs-gpt, one at a time, scored by bits per byte of held-out text."""
    return predicting(load_selective(weights / NAME), NAME, weights / NAME)
