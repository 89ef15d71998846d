"""Build a training run of a causal language model: `hf:DIR?train=FILE&batch=8&seq=256`.

The text of a file is split into tokens once and cut into windows. The last tenth of them is held out.
"""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from whet.errors import MissingExtra, TargetError
from whet.workload import Predict, Quality, TrainingWorkload
from whet.workloads.huggingface import check_directory, load_model
from whet.workloads.shuffled import Shuffled

_HELD_OUT = 10  # one window of so many is held out
_LEAST_WINDOWS = 20
_MOST_SCORED = 64  # held-out windows


class TrainingOptions(BaseModel):
    """Hold the options that may follow the question mark.

    Attributes:
        train: A text file in UTF-8.
        batch: Windows in each batch.
        seq: Tokens in each window.
        lr: The learning rate of AdamW.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: Path
    batch: Annotated[int, Field(ge=1, le=65536)] = 8
    seq: Annotated[int, Field(ge=2)] = 256
    lr: Annotated[float, Field(gt=0)] = 5e-5


def build(directory_and_options: str) -> TrainingWorkload:
    """Return the workload of `DIR?train=FILE&batch=B&seq=T&lr=R`: AdamW, gradients clipped to a norm of 1.

    Raises:
        TargetError: The directory, the file or an option is wrong, or the model is no causal language model.
        MissingExtra: transformers or tokenizers is not installed.
    """
    name, _, query = directory_and_options.partition("?")
    options = _parse(query)
    directory = Path(name).expanduser()
    check_directory(directory)
    model = load_model(directory)
    if "labels" not in model.forward.__code__.co_varnames:
        raise TargetError(f"{type(model).__name__} takes no labels: whet trains causal language models by itself")
    limit = getattr(model.config, "max_position_embeddings", None)
    if isinstance(limit, int) and options.seq > limit:
        raise TargetError(f"seq={options.seq} is more than the {limit} tokens that this model takes")
    windows_BT = _windows(directory, options)
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


def _windows(directory: Path, options: TrainingOptions) -> Tensor:
    """Return the file's tokens in windows, int64 [N, seq]."""
    try:
        text = options.train.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{options.train} cannot be read as text in UTF-8: {error}") from error
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("tokenizers", "examples", "training on a text file") from error
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise TargetError(f"{directory} has no tokenizer.json, which splits the text into tokens")
    ids: list[int] = tokenizers.Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
    num_windows = len(ids) // options.seq
    if num_windows < max(_LEAST_WINDOWS, 2 * options.batch):
        raise TargetError(
            f"{options.train} has {len(ids)} tokens, which is {num_windows} windows of {options.seq}: give a longer "
            "file, or a smaller seq or batch"
        )
    return torch.tensor(ids[: num_windows * options.seq]).view(num_windows, options.seq)


def _parse(query: str) -> TrainingOptions:
    try:
        return TrainingOptions.model_validate(dict(parse_qsl(query, keep_blank_values=True)))
    except ValidationError as error:
        first: Any = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc']))}={first.get('input')}: {first['msg']}"
        raise TargetError(
            f"bad option in ?{query}: {wrong}. Options are train, batch, seq and lr: hf:DIR?train=FILE&batch=8&seq=256"
        ) from error


def is_asked_for(query: str) -> bool:
    """Return whether the options after a question mark ask for a training run."""
    return any(name == "train" for name, _ in parse_qsl(query, keep_blank_values=True))
