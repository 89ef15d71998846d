"""Name the built-in workloads, each with what it is. A module of the same name builds it."""

from pathlib import Path

BUILTIN: dict[str, str] = {
    "digits-cnn": "residual network names handwritten digits of 64 x 64 pixels; batch 8; accuracy",
    "docs-encoder": "BERT-shaped encoder names the topic of 128 tokens of documentation; batch 8; accuracy",
    "docs-gpt": "Llama-shaped decoder predicts 128 tokens of documentation; batch 1; bits per byte",
    "docs-ssm": "Mamba predicts 128 tokens of documentation; batch 1; bits per byte",
}
"""Name each built-in model with a description. Its module has the same name; its `build` returns the workload."""

BUILTIN_TRAINING: dict[str, str] = {
    "digits-cnn-training": "the same network learns to name the digits; batch 64; held-out loss",
    "docs-gpt-training": "the same decoder learns the documentation from random weights; batch 16 x 128; held-out loss",
    "docs-ssm-training": "the same Mamba learns the documentation from random weights; batch 16 x 128; held-out loss",
}
"""Name each built-in training run with a description, in the same way."""

BUILTIN_STREAMS: dict[str, str] = {
    "signs-stream": "U-Net draws a coloured hand of 64 x 64 pixels from 16 x 16 grey ones and a digit, in one step",
}
"""Name each built-in stream with a description, in the same way. `whet stream` takes its weights as a directory."""

WEIGHTS = Path(__file__).parent / "weights"
"""This directory holds their weights, each in a subdirectory with the workload's name."""
