"""One optimisation, one file, and one line in this table."""

from whet.techniques import (
    channels_last,
)
from whet.techniques.technique import Applies, Candidate, Refused, Stage, Technique

__all__ = ["TABLE", "Applies", "Candidate", "Refused", "Stage", "Technique"]

# In the order of their stages; within a stage, as they compose.
TABLE: dict[str, Technique] = {
    module.NAME: module
    for module in (
        channels_last,
    )
}
