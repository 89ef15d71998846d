"""Train docs-ssm with `whet train`. The text is small, so each pass over it is split into other tokens.

A run that was stopped goes on where it was: its directory stays until the weights are written.
"""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from safetensors.torch import load_file, save_file

from whet.errors import TargetError
from whet.measure.machine import describe
from whet.models.selective.reference import is_kept_wide
from whet.workloads import WEIGHTS, docs_gpt, docs_ssm
from whet.workloads.docs_text import START, TOKENIZER, running_text
from whet.workloads.weights import FILE

from .docs_gpt import baseline
from .loop import report
from .tokenizer import special_ids, train_tokenizer, write_json, write_tokenizer
from .writing import write_directory

CONFIG = Path(__file__).with_suffix(".toml")
RECIPE = CONFIG.with_name("docs_ssm_recipe.toml")
BATCH = 32  # rows of 128 tokens, as the configuration says
SPLIT_AGAIN = 0.1  # the chance that a merge of two tokens is skipped (BPE-dropout, arXiv:1910.13267)
MAX_LENGTH = 4096  # tokens of a text, for those who ask the tokenizer; the model has no limit


def train(out: Path = WEIGHTS, steps: int = 300) -> None:
    """Write out/docs-ssm and print its bits per byte of held-out text."""
    tokenizer = train_tokenizer()
    run = out / ".docs-ssm-run"
    if not (run / TOKENIZER).is_file():
        run.mkdir(parents=True, exist_ok=True)
        np.save(run / "train.npy", _varied_tokens(tokenizer, steps * BATCH))
        np.save(run / "held_out.npy", _rows(tokenizer, running_text(held_out=True), 0))
        tokenizer.save(str(run / TOKENIZER), pretty=False)  # the last one: with it, the files are whole
    _train(run, steps)
    write_directory(out / docs_ssm.NAME, lambda directory: _write(run / "model", tokenizer, directory))
    shutil.rmtree(run)
    report(docs_ssm.build(out), baseline())


def _rows(tokenizer: Any, text: str, offset: int) -> NDArray[np.uint16]:
    """Return the tokens of a text from an offset on, in rows of 128 that begin with a start token: [rows * 128]."""
    width = docs_gpt.NUM_TOKENS
    ids = np.array(tokenizer.encode(text).ids[offset:], np.uint16)
    rows = np.full((len(ids) // (width - 1), width), tokenizer.token_to_id(START), np.uint16)
    rows[:, 1:] = ids[: rows[:, 1:].size].reshape(len(rows), width - 1)
    return rows.ravel()


def _varied_tokens(tokenizer: Any, num_rows: int) -> NDArray[np.uint16]:
    """Return at least so many rows of the training text, which is split anew and at other places in each pass."""
    text, draw = running_text(held_out=False), random.Random(0)
    parts: list[NDArray[np.uint16]] = []
    while sum(map(len, parts)) <= num_rows * docs_gpt.NUM_TOKENS:
        tokenizer.model.dropout = SPLIT_AGAIN
        parts.append(_rows(tokenizer, text, draw.randrange(docs_gpt.NUM_TOKENS)))
    tokenizer.model.dropout = None
    return np.concatenate(parts)


def _train(run: Path, steps: int) -> None:
    """Run `whet train` to its end, and go on where an earlier run was stopped.

    Raises:
        TargetError: It was stopped, or failed.
    """
    changes = {
        "out": run,
        "data.train": run / "train.npy",
        "data.held_out": run / "held_out.npy",
        "data.tokenizer": run / TOKENIZER,
        "data.cache": run / "cache",
    }
    if describe().computes_bfloat16("cpu"):
        changes["recipe"] = RECIPE
    else:
        Console().print("docs-ssm trains in float32: this processor does not multiply bfloat16")
    given = [f"{key}={json.dumps(str(path.absolute()))}" for key, path in changes.items()]
    given += [f"steps={steps}", f"schedule.warmup_steps={min(50, steps - 1)}"]
    has_begun = any((run / "checkpoints").glob("step-*"))
    resume = ["--resume"] if has_begun else []
    ended = subprocess.run([sys.executable, "-m", "whet", "train", str(CONFIG), *given, *resume], check=False)
    if ended.returncode:
        raise TargetError(f"whet train ended with exit code {ended.returncode}; run this again to go on in {run}")


def _write(model: Path, tokenizer: Any, directory: Path) -> None:
    """Write a Hugging Face directory whose matrices are bfloat16; rates, step sizes and norms stay float32."""
    weights = load_file(model / FILE)
    rounded = {name: x if is_kept_wide(name) else x.bfloat16() for name, x in weights.items()}
    save_file(rounded, directory / FILE, metadata={"format": "pt"})
    write_tokenizer(tokenizer, directory, MAX_LENGTH)
    ends = special_ids(tokenizer)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    write_json(directory / "config.json", {**config, **ends, "dtype": "bfloat16"})
    write_json(directory / "generation_config.json", {"do_sample": False, **ends})
