"""Tune four training scripts written by others, from outside, and write what was found.

The directory of checkouts holds what is only read here:

    nanoGPT/    karpathy/nanoGPT, with data/shakespeare_char prepared (input.txt, then prepare.py)
    examples/   pytorch/examples; the MNIST files below examples/data/MNIST/raw
    clm/        run_clm.py of transformers' examples/pytorch/language-modeling, a tiny config and a tokenizer in tiny/,
                and train.txt

The Python that runs them has what they import (torchvision, datasets, evaluate, accelerate, transformers), and whet.

    python benchmarks/foreign_scripts.py CHECKOUTS --python ENV/bin/python --out FOLDER

It writes docs/results/foreign_scripts.json; benchmarks/results.py makes the table. Recipes and reports lie in FOLDER.
A run with --only replaces the rows of its scripts.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # at the end: the tests have files of the same names
from circumstances import circumstances

import whet
from whet.errors import WhetError
from whet.files import write_whole
from whet.tuner.result import Result

BUDGET_S = 1200.0
RESULT = Path(__file__).parents[1] / "docs" / "results" / "foreign_scripts.json"


@dataclass(frozen=True)
class ForeignScript:
    """Describe a script written by others.

    Attributes:
        name: Its name in the table.
        directory: Its working directory below the checkouts.
        words: The script and its arguments.
    """

    name: str
    directory: str
    words: tuple[str, ...]


SCRIPTS = (
    ForeignScript(
        "nanoGPT train.py",
        "nanoGPT",
        (
            *("train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=1"),
            *("--n_layer=4", "--n_head=4", "--n_embd=256", "--batch_size=16", "--block_size=128", "--dropout=0.0"),
        ),
    ),
    ForeignScript("pytorch/examples mnist", "examples/mnist", ("main.py", "--epochs", "1")),
    ForeignScript(
        "pytorch/examples imagenet",
        "examples/imagenet",
        ("main.py", "--dummy", "-a", "resnet18", "-b", "16", "-j", "0", "--epochs", "1"),
    ),
    ForeignScript(
        "transformers run_clm.py",
        "clm",
        (
            *("run_clm.py", "--config_name", "tiny", "--tokenizer_name", "tiny", "--train_file", "train.txt"),
            *("--do_train", "--block_size", "128", "--per_device_train_batch_size", "8", "--output_dir", "out"),
            *("--report_to", "none", "--use_cpu"),
        ),
    ),
)


def main() -> None:
    """Tune the scripts that are there, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, help="the directory of the checkouts")
    parser.add_argument("--python", default=sys.executable, help="the Python that runs the scripts")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for each script")
    parser.add_argument("--steps", type=int, default=60, help="the most optimiser steps of each run")
    parser.add_argument("--only", default="", help="scripts whose names contain this text")
    parser.add_argument("--on-busy", default="wait", help="wait, inconclusive or go-on")
    parser.add_argument("--out", type=Path, required=True, help="a folder for recipes and reports")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    rows: dict[str, str] = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.is_file() else {}
    for script in SCRIPTS:
        if arguments.only in script.name:
            rows[script.name] = _row(script, tuned(script, arguments, out / script.directory.replace("/", "-")))
            print(rows[script.name], flush=True)
    command = f"python benchmarks/foreign_scripts.py CHECKOUTS --budget {arguments.budget:g} --steps {arguments.steps}"
    report = {**circumstances(command), "rows": rows}
    write_whole(RESULT, json.dumps(report, indent=1) + "\n")


def tuned(script: ForeignScript, arguments: argparse.Namespace, out: Path) -> Result | str:
    """Return what tuning a script found, or why it was refused."""
    os.chdir(arguments.checkouts / script.directory)
    try:
        return whet.tune_script(
            [arguments.python, *script.words],
            num_steps=arguments.steps,
            budget_s=arguments.budget,
            out=out,
            on_busy=arguments.on_busy,
        )
    except WhetError as error:
        return str(error)
    finally:
        os.chdir(out.parent.parent)


def _row(script: ForeignScript, found: Result | str) -> str:
    if isinstance(found, str):
        return f"| {script.name} | – | – | – | – | refused: {found} |"
    best, low_high = found.best, "–".join(f"{bound:.2f}" for bound in found.best.speedup_ci95)
    loss = "the same in each step" if best.losses is None else best.losses.words
    rates = f"{found.baseline.throughput_per_s:.3g}, {best.throughput_per_s:.3g}"
    cells: Sequence[str] = (script.name, best.label, f"{best.speedup:.2f} ({low_high})", rates, loss, found.sentence)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
