"""Train docs-gpt. The text is small, so dropout and varied tokenisation keep the model from memorising it."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.decoder import Decoder, DecoderConfig
from whet.workloads import WEIGHTS, docs_gpt
from whet.workloads.docs_text import START, running_text, token_ids

from .loop import Schedule, fit, report
from .tokenizer import VOCAB_SIZE, special_ids, train_tokenizer, write_json, write_tokenizer
from .writing import save_weights, write_directory

BATCH = 32
DROPOUT = 0.1
SPLIT_AGAIN = 0.05  # the chance that a merge of two tokens is skipped (BPE-dropout, arXiv:1910.13267)
CONFIG = DecoderConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=256,
    intermediate_size=640,
    num_hidden_layers=5,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)


def train(out: Path = WEIGHTS, steps: int = 450) -> None:
    """Write out/docs-gpt and print its bits per byte of held-out text."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer()
    start = tokenizer.token_to_id(START)
    tokens = _VariedTokens(tokenizer, running_text(held_out=False))
    model = Decoder(CONFIG)
    _initialise(model)

    def loss(step: int) -> Tensor:
        windows_BT = tokens.sample(step)
        logits_BTV = model(docs_gpt.shift(windows_BT, start))
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), windows_BT.flatten())

    dropout = [m.register_forward_hook(_drop) for m in model.modules() if _is_dropped(m)]
    fit(model, loss, Schedule(steps=steps, learning_rate=3e-3, weight_decay=0.2))
    for hook in dropout:
        hook.remove()
    write_directory(out / docs_gpt.NAME, lambda directory: _write(model, tokenizer, directory))
    report(docs_gpt.build(out), baseline())


def baseline() -> float:
    """Return the bits per byte of the held-out text under the frequencies of single bytes in the training text."""
    counts = Counter(running_text(held_out=False).encode())
    total = counts.total() + 256  # each count is raised by 1, so that unseen bytes don't have a probability of zero
    held_out = running_text(held_out=True).encode()
    return -sum(math.log2((counts[byte] + 1) / total) for byte in held_out) / len(held_out)


class _VariedTokens:
    """Hold the training text, which is split into tokens anew every 20 steps."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self.tokenizer = tokenizer
        self.text = text
        self.ids_T = token_ids(tokenizer, text)

    def sample(self, step: int) -> Tensor:
        """Return windows at random places, int64 [BATCH, 128]."""
        if step % 20 == 0:
            self.tokenizer.model.dropout = SPLIT_AGAIN
            self.ids_T = token_ids(self.tokenizer, self.text)
            self.tokenizer.model.dropout = None
        starts = torch.randint(len(self.ids_T) - docs_gpt.NUM_TOKENS, (BATCH,)).tolist()
        return torch.stack([self.ids_T[i : i + docs_gpt.NUM_TOKENS] for i in starts])


def _initialise(model: Decoder) -> None:
    """Draw normal weights with a standard deviation of 0.02.

    Layers that add to the residual stream get less, as in GPT-2.
    """
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * len(model.layers)) if into_stream else 0.02)


def _is_dropped(module: nn.Module) -> bool:
    """Return whether dropout is applied to a module's output."""
    return isinstance(module, nn.Embedding) or type(module).__name__ in ("Attention", "GatedMLP")


def _drop(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return F.dropout(output, DROPOUT, module.training)


def _write(model: Decoder, tokenizer: Any, directory: Path) -> None:
    """Write a Hugging Face directory, with the names that transformers expects."""
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_weights(weights, directory)
    write_tokenizer(tokenizer, directory, CONFIG.max_position_embeddings)
    ends = special_ids(tokenizer)
    config = CONFIG.model_dump(include=set(DecoderConfig.model_fields) - {"rope_parameters"}, exclude_none=True)
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", **ends}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": CONFIG.rope_parameters.rope_theta}
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {"do_sample": False, **ends})
