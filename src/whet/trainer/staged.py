"""Say what the stages of a pipeline take of a batch."""

from torch import Tensor

from whet.techniques.mechanisms.packing.packed_attention import Documents
from whet.trainer.model import Batch


def arguments_of(batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the token ids [B, T] of a batch, and the positions and the mask of rows that hold several documents."""
    if "documents" not in batch:
        return batch["ids"], {}
    mask_B1TT = Documents(batch["documents"]).mask
    return batch["ids"], {"positions_BT": batch["positions"], "mask_B1TT": mask_B1TT}
