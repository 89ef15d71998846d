"""Read what a Hugging Face directory says of its text encoder: how tokens become a vector, or two texts a score.

Sources: sentence-transformers, "Saving models" (modules.json, 1_Pooling/config.json, sentence_bert_config.json,
config_sentence_transformers.json) and its CrossEncoder's default activation.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.core.artefact.text_use import TOKENIZER, Pooling, TextUse, Unfit, write_text_use
from whet.errors import TargetError, named_reason
from whet.files import read_object

_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS = {"": "sigmoid", "Sigmoid": "sigmoid", "Identity": "identity"}
_SMALL = 2**20  # a larger number of tokens is none that a model takes: tokenizers write 1e30 for "unknown"
_OFFSET = {"camembert", "data2vec-text", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"}  # positions begin late


def directory_of(target: str) -> Path | None:
    """Return the directory of hf:DIR; None for any other target."""
    if not target.startswith("hf:"):
        return None
    return Path(target.removeprefix("hf:").partition("?")[0]).expanduser()


def save_text_use(target: str, artefact: Path) -> None:
    """Save beside an artefact what a server needs to take texts, where the target is a directory with a tokenizer.

    Raises:
        OutputError: The files cannot be written.
    """
    directory = directory_of(target)
    if directory is not None and (directory / TOKENIZER).is_file() and (directory / "config.json").is_file():
        write_text_use(text_use_of(directory), directory / TOKENIZER, artefact)


def is_reranker(config: Any) -> bool:
    """Return whether a config of transformers describes a model that gives one score to a pair of texts."""
    return _classifies(config.architectures) and config.num_labels == 1


def text_use_of(directory: Path) -> TextUse:
    """Return what a directory's text encoder is for; with the reason where it is for neither task."""
    try:
        config = read_object(directory / "config.json")
        settings = read_object(directory / "sentence_bert_config.json", required=False)
        common: dict[str, Any] = {
            "max_tokens": _max_tokens(directory, config, settings),
            "pad_id": config.get("pad_token_id") or 0,
            "lower_case": bool(settings.get("do_lower_case")),
        }
        if _classifies(config.get("architectures")):
            return TextUse(task="rerank", output="logits", activation=_activation(config), **common)
        return _embedder(directory, config, common)
    except (Unfit, TargetError) as error:
        return TextUse(task=None, why_not=str(error))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # files of another's making
        return TextUse(task=None, why_not=f"its files cannot be read: {named_reason(error)}")


def _classifies(architectures: list[str] | None) -> bool:
    return (architectures or [""])[0].endswith("ForSequenceClassification")


def _activation(config: dict[str, Any]) -> Any:
    labels = len(config["id2label"]) if config.get("id2label") else config.get("num_labels", 2)
    if labels != 1:
        raise Unfit(f"it is a classifier with {labels} labels; one with num_labels 1 gives scores")
    own = config.get("sentence_transformers") or {}
    named = str(own.get("activation_fn") or config.get("sbert_ce_default_activation_function") or "")
    activation = named.rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise Unfit(f"its scores go through {named}; whet has Sigmoid and Identity")
    return _ACTIVATIONS[activation]


def _embedder(directory: Path, config: dict[str, Any], common: dict[str, Any]) -> TextUse:
    path = directory / "modules.json"
    if not path.is_file():
        raise Unfit(
            f"nothing in {directory} says how tokens become one vector: put the modules.json and 1_Pooling/config.json "
            "of its sentence-transformers model there and tune it again"
        )
    modules = json.loads(path.read_text(encoding="utf-8"))
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise Unfit(
            f"modules.json lists {', '.join(kinds)}; whet has Transformer, Pooling and Normalize, in this order"
        )
    own = read_object(directory / "config_sentence_transformers.json", required=False)
    prompt = (own.get("prompts") or {}).get(own.get("default_prompt_name") or "", "")
    return TextUse(
        task="embed",
        output="last_hidden_state",
        pooling=_pooling(directory / str(modules[1]["path"]) / "config.json", prompt),
        normalize="Normalize" in kinds,
        prompt=prompt,
        dimensions=_dimensions(config),
        **common,
    )


def _pooling(path: Path, prompt: str) -> Pooling:
    settings = read_object(path)
    if prompt and settings.get("include_prompt") is False:
        raise Unfit("its pooling leaves out the prompt's tokens, which whet does not do")
    stated = settings.get("pooling_mode")
    modes = (
        [stated]
        if isinstance(stated, str)
        else [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
    )
    found = [_POOLINGS.get(mode, mode if mode in _POOLINGS.values() else None) for mode in modes]
    if len(found) != 1 or found[0] is None:
        raise Unfit(f"its pooling is {', '.join(map(str, modes)) or 'none'}; whet has one of {', '.join(_POOLINGS)}")
    return found[0]  # type: ignore[return-value]


def _dimensions(config: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the shorter lengths that its vectors were trained for (Matryoshka); None: any."""
    stated = config.get("matryoshka_dimensions")
    if isinstance(stated, list):
        return tuple(map(int, stated))
    return None if config.get("is_matryoshka") else ()


def position_limit(config: Mapping[str, Any]) -> int | None:
    """Return the most tokens for which a model has positions, from its config.json; None where it does not say."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    return positions - (config.get("pad_token_id") or 0) - 1 if config.get("model_type") in _OFFSET else positions


def _max_tokens(directory: Path, config: dict[str, Any], settings: dict[str, Any]) -> int:
    positions = position_limit(config)
    tokenizer = read_object(directory / "tokenizer_config.json", required=False)
    stated = [positions, settings.get("max_seq_length"), tokenizer.get("model_max_length")]
    known = [size for size in stated if isinstance(size, int) and 0 < size < _SMALL]
    if not known:
        raise Unfit("nothing says how many tokens it takes: give max_seq_length in sentence_bert_config.json")
    return min(known)


def identity_of(target: str) -> tuple[str, str]:
    """Return the directory of hf:DIR, from the root, and the type of its model; empty texts for any other target."""
    directory = directory_of(target)
    if directory is None:
        return "", ""
    return str(directory.resolve()), str(read_object(directory / "config.json", required=False).get("model_type", ""))
