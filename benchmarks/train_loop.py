"""What the loop of `whet train` costs beside a bare loop with the same recipe, in pairs.

    python benchmarks/train_loop.py --recipe DIR [--pairs 6] [--steps 50]

The model is the Llama of 34 million parameters of train_peers_model.py, on batches of 8 x 256 tokens. The bare loop is
that of train_peers_worker.py: transformers' model, batches in memory, `whet.prepare` with the recipe, and nothing else.
`whet train` opens the same model from a Hugging Face directory, reads its batches from a file of tokens, writes
log.jsonl and TensorBoard's files every 5 steps and a checkpoint every 50, and serves the live page. Each run is a
process of its own. A pair is one run of each, in the order ABBA. A run makes --steps steps after 20 that warm it up;
its rate is all tokens over all seconds between, with logging and checkpoints.

Writes docs/results/train_loop.MACHINE.json. --trial shows with a tiny model that everything runs, and writes nothing.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import numpy as np
from circumstances import circumstances
from quietly import quiet_machine
from train_peers_model import LEARNING_RATE, NUM_BATCHES, SHAPE, TINY, VARIABLE, WEIGHT_DECAY, make_model, make_rows
from train_peers_worker import Ended, by_whet

from whet.core.recipe import Recipe
from whet.files import write_whole
from whet.measure.machine import describe
from whet.measure.stats import paired_ratio

AIM = 0.98
WARM_UP = 20
SAVE_INTERVAL, LOG_INTERVAL = 50, 5
BARE, TRAIN = "bare loop", "whet train"


class Timed:
    """Stop a bare loop after its steps, and keep the seconds of those after the warm-up."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0
        self.seconds = self._began = 0.0

    def __call__(self) -> None:
        self._done += 1
        if self._done == WARM_UP:
            self._began = time.perf_counter()
        if self._done == WARM_UP + self._steps:
            self.seconds = time.perf_counter() - self._began
            raise Ended


def main() -> None:
    options = _options()
    if options.bare:
        _run_bare(options)
        return
    os.environ[VARIABLE] = json.dumps(TINY if options.trial else SHAPE)
    with tempfile.TemporaryDirectory(prefix="whet-train-loop-") as name:
        scratch = Path(name)
        _write_inputs(scratch, options)
        rates: dict[str, list[float]] = {BARE: [], TRAIN: []}
        for number in range(options.pairs):
            order = (BARE, TRAIN) if number % 2 == 0 else (TRAIN, BARE)
            with contextlib.nullcontext() if options.trial else quiet_machine():
                for what in order:
                    rate = _bare(options) if what == BARE else _train(scratch, options, number)
                    rates[what].append(rate)
                    print(f"{what}: {rate:,.0f} tokens/s", flush=True)
    _report(rates, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, required=True, help="what whet tune found for train_peers_model.py")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50, help="of a run, after the warm-up")
    parser.add_argument("--trial", action="store_true", help="a tiny model on a busy machine; write nothing")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pairs < 2 or options.steps % LOG_INTERVAL or WARM_UP % LOG_INTERVAL:
        parser.error(f"--pairs must be 2 or more, and --steps a multiple of {LOG_INTERVAL}")
    return options


def _write_inputs(scratch: Path, options: argparse.Namespace) -> None:
    """Write the model, the tokens and the configuration of `whet train`."""
    sizes = json.loads(os.environ[VARIABLE])
    make_model().save_pretrained(scratch / "base")
    tokens = make_rows(NUM_BATCHES * sizes["rows"]).flatten().numpy().astype(np.uint16)
    np.save(scratch / "tokens.npy", tokens)
    text = f"""
out = "run"
steps = {WARM_UP + options.steps}
recipe = {json.dumps(str(options.recipe.absolute()))}

[model]
directory = "base"

[data]
train = "tokens.npy"
sequence_length = {sizes["tokens"]}
held_out_share = 0.1

[batch]
global_batch_size = {sizes["rows"]}

[optimizer]
lr = {LEARNING_RATE}
betas = [0.9, 0.999]
weight_decay = {WEIGHT_DECAY}
max_norm = 0.0

[schedule]
kind = "constant"
warmup_steps = 0

[evaluation]
eval_interval = 1000000
num_rows = {sizes["rows"]}

[checkpoints]
save_interval = {SAVE_INTERVAL}

[log]
log_interval = {LOG_INTERVAL}
tensorboard = true
port = 0
"""
    (scratch / "run.toml").write_text(text)


def _bare(options: argparse.Namespace) -> float:
    """Return the tokens a second of a bare loop, in a process of its own."""
    command = [sys.executable, __file__, "--bare", "--recipe", str(options.recipe), "--steps", str(options.steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split("rate ")[-1])


def _run_bare(options: argparse.Namespace) -> None:
    timed = Timed(options.steps)
    with contextlib.suppress(Ended):
        by_whet(timed, options.recipe)
    sizes = json.loads(os.environ[VARIABLE])
    print(f"rate {options.steps * sizes['rows'] * sizes['tokens'] / timed.seconds}")


def _train(scratch: Path, options: argparse.Namespace, number: int) -> float:
    """Return the tokens a second of `whet train`, from what it logged."""
    out = scratch / f"run-{number}"
    command = [sys.executable, "-m", "whet", "train", str(scratch / "run.toml"), f"out={out}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    first, last = (next(line for line in lines if line["step"] == step) for step in (WARM_UP, WARM_UP + options.steps))
    rate: float = (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])
    return rate


def _report(rates: dict[str, list[float]], options: argparse.Namespace) -> None:
    ratio, (low, high) = paired_ratio(rates[TRAIN], rates[BARE])
    word = "reached" if low >= AIM else "missed" if high < AIM else "open"
    print(f"{TRAIN} over the {BARE}: {ratio:.3f} ({low:.3f}-{high:.3f}); at least {AIM} is {word}")
    if options.trial:
        return
    machine = describe().fingerprint
    command = f"python benchmarks/train_loop.py --recipe DIR --pairs {options.pairs} --steps {options.steps}"
    report: dict[str, Any] = {
        **circumstances(command),
        "aim": AIM,
        "recipe": str(Recipe.read(options.recipe)),
        "steps": options.steps,
        "save_interval": SAVE_INTERVAL,
        "tokens_per_s": rates,
        "ratio": ratio,
        "ci95": [low, high],
        "verdict": word,
    }
    write_whole(HERE.parent / "docs" / "results" / f"train_loop.{machine}.json", json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
