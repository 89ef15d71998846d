"""Train a built-in workload's model: `python -m whet.workloads.train NAME`.

It prints the held-out score of the weights as written, and the score to beat. It takes minutes on two cores.
"""

import argparse
import sys
from pathlib import Path

from whet.errors import WhetError
from whet.workloads import WEIGHTS
from whet.workloads.train import digits_cnn, docs_encoder, docs_gpt, docs_ssm

TRAINERS = {
    "digits-cnn": digits_cnn.train,
    "docs-encoder": docs_encoder.train,
    "docs-gpt": docs_gpt.train,
    "docs-ssm": docs_ssm.train,
}


def main(arguments: list[str] | None = None) -> int:
    """Train the workload that the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m whet.workloads.train", description="Train a built-in workload.")
    parser.add_argument("name", choices=TRAINERS)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where NAME/ is written (default: the package)")
    parser.add_argument("--steps", type=int, help="optimiser steps (default: what the shipped weights took)")
    options = parser.parse_args(arguments)
    steps = {} if options.steps is None else {"steps": options.steps}
    try:
        TRAINERS[options.name](options.out, **steps)
    except WhetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
