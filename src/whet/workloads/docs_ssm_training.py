"""Define docs-ssm-training: a Mamba learns the text of Python's language reference from nothing."""

from pathlib import Path

import torch

from whet.core.workload import TrainingWorkload
from whet.models.selective import read_config
from whet.models.selective.fresh import fresh_selective
from whet.workloads import WEIGHTS, docs_ssm
from whet.workloads.docs_gpt_training import learning

NAME = "docs-ssm-training"


def build(weights: Path = WEIGHTS) -> TrainingWorkload:
    """Return the workload: the batches and the optimiser of docs-gpt-training.

    The score is the mean cross-entropy of held-out text in nats a token; lower is better.
    """
    directory = weights / docs_ssm.NAME
    return learning(fresh_selective(read_config(directory), torch.Generator().manual_seed(0)), NAME, directory)
