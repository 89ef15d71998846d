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
    """Return the workload, with the batches, the optimiser and the score of docs-gpt-training."""
    directory = weights / docs_ssm.NAME
    return learning(fresh_selective(read_config(directory), torch.Generator().manual_seed(0)), NAME, directory)
