"""Build a training run of a causal language model: `hf:DIR?train=FILE&batch=8&seq=256`.

The text of a file is split into tokens once and cut into windows. Every tenth window is held out.
"""

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.tokenizer_files.reading import library, read_tokenizer
from whet.core.workload import Predict, Quality, TrainingWorkload
from whet.errors import TargetError
from whet.workloads.huggingface import load_model
from whet.workloads.huggingface_options import TOKENIZER, TrainingOptions, check_training
from whet.workloads.shuffled import Shuffled

_HELD_OUT = 10  # one window of so many is held out
_LEAST_WINDOWS = 20
_DEFAULT_TOKENS = 256  # of a window
_NUM_TRIED = 8  # tokens that show whether a model is causal
_MOST_SCORED = 64  # held-out windows


def build(directory_and_options: str) -> TrainingWorkload:
    """Return the workload of `DIR?train=FILE&batch=B&seq=T&lr=R`: AdamW, gradients clipped to a norm of 1.

    Raises:
        TargetError: The directory, the file or an option is wrong, or the model is no causal language model.
        MissingExtra: transformers or tokenizers is not installed.
    """
    directory, options = check_training(directory_and_options)
    model: Any = load_model(directory)
    check_causal(model)
    windows_BT = _windows(directory, options, _num_tokens(model, options), model.config.get_text_config().vocab_size)
    held_out = torch.arange(len(windows_BT)) % _HELD_OUT == _HELD_OUT - 1
    train_BT, test_BT = windows_BT[~held_out], windows_BT[held_out][:_MOST_SCORED]

    def nats(predict: Predict) -> list[float]:
        return [float(predict(input_ids=x_BT, labels=x_BT).loss) for x_BT in test_BT.split(options.batch)]

    return TrainingWorkload(
        model=model,
        loss=_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=options.lr),
        batches=Shuffled(len(train_BT), options.batch, lambda rows: train_BT[rows]),
        evaluation=Quality("held-out loss", nats, higher_is_better=False),
        clip_norm=1.0,
        num_samples=options.batch,
        name=f"{directory.resolve().name}-training",
    )


def _loss(model: nn.Module, ids_BT: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids_BT, labels=ids_BT).loss
    return loss


def check_causal(model: Any) -> None:
    """Raise TargetError where a model does not predict each token from those before it."""
    from transformers.models.auto import modeling_auto  # loading the model has imported it already

    name = type(model).__name__
    with_labels = "labels" in inspect.signature(model.forward).parameters
    if name not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() or not with_labels:
        raise TargetError(
            f"{name} is no causal language model, and whet trains no other from a text file; write a function that "
            "returns a whet.TrainingWorkload and name it as FILE.py:FUNCTION"
        )
    ids_BT = torch.arange(_NUM_TRIED)[None] % model.config.get_text_config().vocab_size
    other_BT = ids_BT.clone()
    other_BT[0, -1] = 0
    with torch.no_grad():
        before, after = (model(input_ids=ids).logits[:, :-1].float() for ids in (ids_BT, other_BT))
    if not torch.allclose(before, after, rtol=0, atol=1e-5 * float(before.abs().max())):
        raise TargetError(
            f"{name} sees the tokens that it is to predict: it is no causal language model as its config.json "
            "describes it (is_decoder of BERT and its kin)"
        )


def _num_tokens(model: Any, options: TrainingOptions) -> int:
    """Return the tokens of a window."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        return options.seq or _DEFAULT_TOKENS
    if options.seq is not None and options.seq > limit:
        raise TargetError(
            f"seq={options.seq} is more than the {limit} tokens that this model takes; give a smaller seq"
        )
    return options.seq or min(_DEFAULT_TOKENS, limit)


def _windows(directory: Path, options: TrainingOptions, num_tokens: int, vocab_size: int) -> Tensor:
    """Return the file's tokens in windows, int64 [N, num_tokens]."""
    try:
        text = options.train.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{options.train} cannot be read as text in UTF-8: {error}") from error
    tokenizer, _ = read_tokenizer(library("examples", "training on a text file"), directory / TOKENIZER)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    if ids and max(ids) >= vocab_size:
        raise TargetError(
            f"the tokenizer in {directory} makes token {max(ids)}, and the model knows {vocab_size} tokens: they do "
            "not belong together; save the model's own tokenizer there"
        )
    num_windows = len(ids) // num_tokens
    least = max(_LEAST_WINDOWS, 2 * options.batch)
    if num_windows < least:
        raise TargetError(
            f"{options.train} has {len(ids)} tokens, which is {num_windows} windows of {num_tokens}; {least} are "
            "needed: give a longer file, or a smaller seq or batch"
        )
    return torch.tensor(ids[: num_windows * num_tokens]).view(num_windows, num_tokens)
