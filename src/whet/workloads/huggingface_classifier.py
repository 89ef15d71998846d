"""Open a Hugging Face directory as a classifier of texts, with a new head where it has none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from whet.errors import TargetError, foreign
from whet.workloads.huggingface import config_in, quiet, transformers_package, with_weights
from whet.workloads.huggingface_options import check_directory

_ENDING = "ForSequenceClassification"
_POOLERS = ("pooler", "pre_classifier")  # layers of an encoder that belong to a head, and that some directories lack


class OpenedClassifier(NamedTuple):
    """Hold a classifier that was opened.

    Attributes:
        model: The model of transformers, in float32.
        classes: The model's class for each label, in the order of the labels.
        is_new: Whether its head is new.
    """

    model: Any
    classes: tuple[int, ...]
    is_new: bool


def load_classifier(directory: Path, labels: Sequence[str | int], pad_id: int | None) -> OpenedClassifier:
    """Open a directory as a classifier.

    A new head is drawn from PyTorch's generator. A head that is there keeps its order of labels.

    Args:
        directory: A Hugging Face directory of any model that transformers has a classifier for.
        pad_id: The token behind short texts, where the directory names none; None for none.

    Raises:
        TargetError: It cannot be opened, has no classifier, or is one of other labels.
        MissingExtra: transformers is not installed.
    """
    check_directory(directory)
    with quiet():
        transformers = transformers_package()
        with foreign(TargetError, f"transformers cannot load {directory} as a classifier"):
            config = config_in(transformers, directory)
            is_new = not (config.architectures or [""])[0].endswith(_ENDING)
            classes = tuple(range(len(labels))) if is_new else _classes(directory, config, labels)
            if is_new:
                config.num_labels = len(labels)
                config.id2label = {i: str(label) for i, label in enumerate(labels)}
                config.label2id = {str(label): i for i, label in enumerate(labels)}
            config.problem_type = "single_label_classification"
            config.use_cache = False
            if getattr(config, "pad_token_id", None) is None:
                config.pad_token_id = pad_id
            model, missing = with_weights(transformers.AutoModelForSequenceClassification, directory, config)
    base = f"{model.base_model_prefix}."
    lacking = [name for name in missing if not is_new or _is_of_base(name, base)]
    if lacking:
        raise TargetError(
            f"the weights in {directory} lack {lacking[0]}, which would be random; save the whole model with "
            "save_pretrained"
        )
    return OpenedClassifier(model, classes, is_new)


def _is_of_base(name: str, base: str) -> bool:
    return name.startswith(base) and not any(part.startswith(_POOLERS) for part in name.split("."))


def _classes(directory: Path, config: Any, labels: Sequence[str | int]) -> tuple[int, ...]:
    """Return the class of each label in a head that is there, or raise TargetError where it has other labels."""
    own = [str(config.id2label[i]) for i in range(config.num_labels)]
    names = [str(label) for label in labels]
    if sorted(own) == sorted(names):
        return tuple(own.index(name) for name in names)
    if own == [f"LABEL_{i}" for i in range(len(names))]:
        return tuple(range(len(names)))
    raise TargetError(
        f"{directory} classifies {', '.join(own)}, and the data {', '.join(names)}; for a new head, save the model "
        "without its head: AutoModel.from_pretrained(DIR).save_pretrained(NEW)"
    )
