"""Run hybrid models, LFM2, Granite 4, Bamba, Falcon-H1, Nemotron-H: attention beside Mamba-2 and short convolutions."""

from whet.models.hybrid.config import HybridConfig
from whet.models.hybrid.config_files import read_config
from whet.models.hybrid.files import load_hybrid
from whet.models.hybrid.reference import Hybrid
from whet.models.hybrid.state import HybridState

__all__ = ["Hybrid", "HybridConfig", "HybridState", "load_hybrid", "read_config"]
