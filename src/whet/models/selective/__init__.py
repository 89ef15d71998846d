"""Run selective state-space models, Mamba-1, Falcon-Mamba and Mamba-2, in readable PyTorch over whet's operators."""

from whet.models.selective.config import SelectiveConfig, read_config
from whet.models.selective.files import load_selective
from whet.models.selective.reference import Selective
from whet.models.selective.state import SelectiveState

__all__ = ["Selective", "SelectiveConfig", "SelectiveState", "load_selective", "read_config"]
