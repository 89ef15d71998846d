"""The 34M Llama that train_peers.py trains, and its data. Peers load it without whet; `whet tune` by `workload`.

The shape comes from the environment variable TRAIN_PEERS_SHAPE, as JSON; without it, it is SHAPE: 33.7 million
parameters, and 187 million floating-point operations a token, forward and backward.
"""

import json
import os

import torch

VARIABLE = "TRAIN_PEERS_SHAPE"
SHAPE = {"hidden": 512, "layers": 8, "intermediate": 1376, "heads": 8, "vocabulary": 8192, "rows": 8, "tokens": 256}
TINY = {"hidden": 32, "layers": 2, "intermediate": 64, "heads": 2, "vocabulary": 256, "rows": 2, "tokens": 16}
LEARNING_RATE, WEIGHT_DECAY = 3e-4, 0.1
NUM_BATCHES = 64


def shape():
    return json.loads(os.environ.get(VARIABLE, json.dumps(SHAPE)))


def make_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = shape()
    config = LlamaConfig(
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["intermediate"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        vocab_size=sizes["vocabulary"],
        max_position_embeddings=sizes["tokens"],
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()


def make_rows(number, seed=1):
    """Windows of tokens, int64 [number, tokens]. Small numbers are frequent, so that there is something to learn."""
    sizes = shape()
    drawn = torch.rand(number, sizes["tokens"], generator=torch.Generator().manual_seed(seed))
    return (sizes["vocabulary"] * drawn**3).long()


def workload():
    from whet import Quality, TrainingWorkload
    from whet.workloads.shuffled import Shuffled

    rows = shape()["rows"]
    windows, held_out = make_rows(NUM_BATCHES * rows), make_rows(2 * rows, seed=2)
    return TrainingWorkload(
        model=make_model(),
        loss=lambda model, ids: model(input_ids=ids, labels=ids).loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        batches=Shuffled(len(windows), rows, lambda chosen: windows[chosen]),
        evaluation=Quality(
            "held-out loss",
            lambda predict: [float(predict(input_ids=ids, labels=ids).loss) for ids in held_out.split(rows)],
            higher_is_better=False,
        ),
        num_samples=rows,
        name="llama-34m",
    )
