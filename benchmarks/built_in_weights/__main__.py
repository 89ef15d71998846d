"""Train a built-in workload's model: `python -m benchmarks.built_in_weights NAME`.

It prints the held-out score of the weights as written, and the score to beat. It takes minutes on two cores. What
needs data from elsewhere has options of its own: `python -m benchmarks.built_in_weights signs-stream --help`.
"""

import argparse
import sys
from pathlib import Path

from whet.errors import WhetError
from whet.workloads import WEIGHTS

from . import digits_cnn, docs_encoder, docs_gpt, docs_ssm, signs_stream

TRAINERS = {
    "digits-cnn": digits_cnn.train,
    "docs-encoder": docs_encoder.train,
    "docs-gpt": docs_gpt.train,
    "docs-ssm": docs_ssm.train,
}
WITH_OWN_OPTIONS = {signs_stream.NAME: signs_stream.main}


def main(arguments: list[str] | None = None) -> int:
    """Train the workload that the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.built_in_weights", description="Train a built-in workload."
    )
    parser.add_argument("name", choices=[*TRAINERS, *WITH_OWN_OPTIONS])
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where NAME/ is written (default: the package)")
    parser.add_argument("--steps", type=int, help="optimiser steps (default: what the shipped weights took)")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and given[0] in WITH_OWN_OPTIONS:
            return WITH_OWN_OPTIONS[given[0]](given[1:])
        options = parser.parse_args(given)
        steps = {} if options.steps is None else {"steps": options.steps}
        TRAINERS[options.name](options.out, **steps)
    except WhetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
