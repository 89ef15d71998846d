"""Run decoders with long-term memory: attention within segments, a bank of slots, a memory that learns as it reads."""

from whet.models.memory_bank.config import LtmConfig, read_config
from whet.models.memory_bank.files import load_ltm
from whet.models.memory_bank.reference import Ltm
from whet.models.memory_bank.state import LtmState

__all__ = ["Ltm", "LtmConfig", "LtmState", "load_ltm", "read_config"]
