"""Define docs-gpt: a Llama-shaped decoder predicts the text of Python's language reference, token by token.

Its directory is in the Hugging Face format, so transformers' AutoModelForCausalLM and AutoTokenizer load it too.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.core.workload import Predict, Quality, Workload
from whet.models.decoder import load_decoder
from whet.workloads import WEIGHTS
from whet.workloads.docs_text import START, load_tokenizer, num_bytes, running_text, token_ids, windows

NAME = "docs-gpt"
NUM_TOKENS = 128
NUM_HELD_OUT = 80  # windows that are scored: about 35 KB of text, in a second or two
NUM_CALIBRATION = 16  # batches


def build(weights: Path = WEIGHTS) -> Workload:
    """Return the workload: one window of 128 tokens at a time, scored by bits per byte of held-out text."""
    return predicting(load_decoder(weights / NAME), NAME, weights / NAME)


def predicting(model: nn.Module, name: str, directory: Path) -> Workload:
    """Return the workload of a model that predicts tokens of documentation.

    Each window is read on its own: a start token and its first 127 tokens go in, and all its 128 are predicted.
    The model maps token ids [B, T] to logits [B, T, V]. The directory is that of the tokenizer.
    """
    tokenizer = load_tokenizer(directory)
    start = tokenizer.token_to_id(START)
    test_BT = windows(token_ids(tokenizer, running_text(held_out=True)), NUM_TOKENS, NUM_TOKENS)[:NUM_HELD_OUT]
    train_BT = windows(token_ids(tokenizer, running_text(held_out=False)), NUM_TOKENS, NUM_TOKENS)[:NUM_CALIBRATION]
    bytes_per_window = num_bytes(tokenizer, test_BT) / len(test_BT)
    batches = list(zip(shift(test_BT, start).split(1), test_BT.split(1), strict=True))

    def bits_per_byte(predict: Predict) -> list[float]:
        """Return the bits of each window over the bytes of a mean window; their mean is all bits over all bytes."""
        nats = [
            float(F.cross_entropy(predict(x_BT).float().flatten(0, 1), y_BT.flatten(), reduction="sum"))
            for x_BT, y_BT in batches
        ]
        return [each / math.log(2) / bytes_per_window for each in nats]

    return Workload(
        model=model,
        inputs=[x_BT for x_BT, _ in batches[:4]],
        quality=Quality("bits per byte", bits_per_byte, higher_is_better=False),
        calibration=shift(train_BT, start).split(1),
        name=name,
    )


def shift(windows_BT: Tensor, start: int) -> Tensor:
    """Return the inputs that predict windows: a start token, then all but the last token, [B, T] -> [B, T]."""
    return torch.cat((torch.full_like(windows_BT[:, :1], start), windows_BT[:, :-1]), dim=1)
