"""Make the kind of a target that has a name, here or on another computer."""

from contextlib import AbstractContextManager

from whet.tuner.asked import Asked
from whet.tuner.kind import Kind
from whet.tuner.kind_options import KindWord
from whet.tuner.model_kind import ModelKind
from whet.tuner.prepared_target import Prepared
from whet.tuner.training.kind import TrainingKind
from whet.tuner.training.shared_kind import SharedTrainingKind


def kind_of(
    word: KindWord,
    asked: Asked,
    preparing: AbstractContextManager[Prepared],
    *,
    nproc: int | None = None,
    may_be_training: bool = False,
) -> Kind:
    """Return the kind for a model's calls, or for a training, which `nproc` processes may share."""
    if word == "inference":
        return ModelKind(asked, preparing, may_be_training=may_be_training)
    return TrainingKind(asked, preparing) if nproc is None else SharedTrainingKind(asked, preparing, nproc)
