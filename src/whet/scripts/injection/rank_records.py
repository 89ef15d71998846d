"""Join what the processes of a launched run recorded into one record, as if one process had trained.

A step takes as long as in the slowest process, its loss is the mean of all, and its gradients are those of each. So a
proof judges every process: a gradient of process 1 has the name "rank 1: NAME" beside those of process 0.
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from whet.scripts.injection.messages import GRADIENTS, ScriptRecord
from whet.techniques.proof import gradients
from whet.techniques.proof.updates import UpdateProof

_RANKS = "rank-*"


def are_recorded(messages: Path) -> bool:
    """Return whether each process of a run that has found its loop has left its record."""
    found = list(messages.glob(_RANKS))
    return bool(found) and all(ScriptRecord.is_in(directory) for directory in found)


def joined_record(messages: Path) -> ScriptRecord | None:
    """Return the record of all processes, and write their gradients to one file; None where one has no record."""
    places = sorted(messages.glob(_RANKS), key=lambda place: int(place.name.rpartition("-")[2]))
    records = [record for record in map(ScriptRecord.read, places) if record is not None]
    if not records or len(records) < max(len(places), records[0].world_size):
        return None
    if (places[0] / GRADIENTS).is_file():
        gradients.write(_joined_gradients(places), messages / GRADIENTS)
    first = records[0]
    heaviest = max(records, key=lambda record: record.memory.peak_bytes if record.memory is not None else 0)
    return first.model_copy(
        update={
            "seconds": [max(times) for times in zip(*(record.seconds for record in records), strict=False)],
            "losses": [_mean(losses) for losses in zip(*(record.losses for record in records), strict=False)],
            "peak_bytes": max(record.peak_bytes for record in records),
            "cuda_peak_bytes": heaviest.cuda_peak_bytes,
            "memory": heaviest.memory,
            "applicable": [step for step in first.applicable if all(step in one.applicable for one in records)],
            "refused": {name: why for record in reversed(records) for name, why in record.refused.items()},
            "within_documents": _mean([record.within_documents for record in records]),
            "updates": _worst([record.updates for record in records]),
        }
    )


def _joined_gradients(places: Sequence[Path]) -> dict[str, Tensor]:
    found = gradients.read(places[0] / GRADIENTS)
    for rank, place in enumerate(places[1:], 1):
        for key, value in gradients.read(place / GRADIENTS).items():
            norm, key = ("norm.", key.removeprefix("norm.")) if key.startswith("norm.") else ("", key)
            step, _, name = key.partition(".")
            found[f"{norm}{step}.rank {rank}: {name}"] = value
    return found


def _mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known) if len(known) == len(losses) else None


def _worst(proofs: Sequence[UpdateProof | None]) -> UpdateProof | None:
    """Return the proof that is refuted, or else the one that could not be made, or else the one furthest off."""
    if any(proof is None for proof in proofs):
        return None
    known = [proof for proof in proofs if proof is not None]
    return min(known, key=lambda proof: (proof.is_same is not False, proof.is_same is not None, -proof.error))
