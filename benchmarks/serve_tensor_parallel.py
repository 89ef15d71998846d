"""Measure two processes of one thread each that compute a model together, beside one process with two threads.

    python benchmarks/serve_tensor_parallel.py --work DIR [--pairs 8] [--steps 64] [--weights as-is int8]
                                                         # writes docs/results/serve_tensor_parallel.json

The model is that of serve_peers.py (Llama's shape, 246 million weights at random). Each side of a pair runs in fresh
processes, and sides alternate in who is first. A side's figure is the median step of those in which all sequences make
one token, or the median time of a prompt of 1,024 tokens; the ratio is that of neighbours, with a 95% interval.
"waited" is the part of the steps in which the first process waited for the other one, or added what both have.
--print-only measures on a busy machine too, and writes nothing.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from circumstances import circumstances
from quietly import quiet_machine
from serving_peers.model import make_model
from serving_tables import SERVING

from whet.files import write_whole
from whet.measure.stats import paired_ratio
from whet.server.admission import Admission
from whet.server.assembly import assemble
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams
from whet.server.stepper import Stepper
from whet.server.tensor_parallel.divided_model import DividedModel, open_on_ranks

RESULT = Path(__file__).parents[1] / "docs" / "results" / "serve_tensor_parallel.json"
NUM_THREADS, NUM_RANKS = 2, 2  # of one process; and processes with one thread each
MAX_LEN, NUM_DECODED_FROM, NUM_PROMPT, PROMPTS = 2048, 32, 1024, 4
BATCHES = (1, 8)
TARGET = 0.8
CASES = (*(f"decode, {count} at once" for count in BATCHES), f"prompt of {NUM_PROMPT:,}")
Figures = dict[str, tuple[float, float]]
"""For each case, tokens a second, and the part of the time that was waited."""


class Side:
    """Run one side of a pair in this process."""

    def __init__(self, directory: Path, weights: Any, num_ranks: int) -> None:
        torch.set_num_threads(NUM_THREADS)
        options = EngineOptions(
            weights=weights,
            speculation="off",
            prefix_caching=False,
            max_model_len=MAX_LEN,
            memory=2**30,
            tensor_parallel_size=num_ranks,
        )
        self.model = open_on_ranks(directory, options)
        self._stepper: Stepper = assemble(self.model, options, MAX_LEN)
        self._admission = Admission(None, self.model.vocab_size, MAX_LEN)
        self._draw = np.random.default_rng(0)

    def figures(self, num_steps: int) -> Figures:
        found: Figures = {}
        for case, count in zip(CASES, BATCHES, strict=False):
            found[case] = self._decoded(count, num_steps)
        found[CASES[-1]] = self._prompts()
        return found

    def close(self) -> None:
        if isinstance(self.model, DividedModel):
            self.model.close()

    def _decoded(self, count: int, num_steps: int) -> tuple[float, float]:
        requests = [self._begun(NUM_DECODED_FROM, 1000) for _ in range(count)]
        while not all(request.num_output > 4 for request in requests):
            self._stepper.step()
        times, waits = zip(*(self._timed_step() for _ in range(num_steps)), strict=True)
        for request in requests:
            self._stepper.abort(request)
        return count / statistics.median(times), sum(waits) / sum(times)

    def _prompts(self) -> tuple[float, float]:
        whole = []
        for _ in range(PROMPTS):
            request = self._begun(NUM_PROMPT, 1)
            steps = []
            while not request.is_finished:
                steps.append(self._timed_step())
            whole.append(tuple(map(sum, zip(*steps, strict=True))))
        times, waits = zip(*whole[1:], strict=True)
        return NUM_PROMPT / statistics.median(times), sum(waits) / sum(times)

    def _begun(self, num_prompt: int, num_tokens: int) -> Any:
        prompt = self._draw.integers(300, self.model.vocab_size, num_prompt).tolist()
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        request = self._admission.request(prompt, params)
        self._stepper.scheduler.add(request)
        return request

    def _timed_step(self) -> tuple[float, float]:
        before, began = self._waited_s(), time.perf_counter()
        self._stepper.step()
        return time.perf_counter() - began, self._waited_s() - before

    def _waited_s(self) -> float:
        return self.model.waited_s if isinstance(self.model, DividedModel) else 0.0


def in_process(directory: Path, weights: str, num_ranks: int, num_steps: int) -> Figures:
    """Run a side in a fresh process."""
    words = [sys.executable, __file__, "--work", str(directory), "--steps", str(num_steps)]
    done = subprocess.run(
        [*words, "--weights", weights, "--side", str(num_ranks)], stdout=subprocess.PIPE, text=True, check=True
    )
    return {case: (float(rate), float(waited)) for case, (rate, waited) in json.loads(done.stdout).items()}


def measure(directory: Path, weights: str, num_pairs: int, num_steps: int) -> list[dict[str, Any]]:
    """Return the rows of one kind of weights."""
    pairs: list[dict[int, Figures]] = []
    for number in range(num_pairs):
        order = (1, NUM_RANKS) if number % 2 else (NUM_RANKS, 1)
        pairs.append({num_ranks: in_process(directory, weights, num_ranks, num_steps) for num_ranks in order})
    rows = []
    for case in CASES:
        one, two = ([pair[num_ranks][case][0] for pair in pairs] for num_ranks in (1, NUM_RANKS))
        ratio, interval = paired_ratio([1 / rate for rate in one], [1 / rate for rate in two])
        rows.append(
            {
                "weights": weights,
                "case": case,
                "one_process": statistics.median(one),
                "two_processes": statistics.median(two),
                "ratio": ratio,
                "ratio_ci95": list(interval),
                "waited": statistics.median(pair[NUM_RANKS][case][1] for pair in pairs),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the model is, or is made")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--weights", nargs="+", default=["as-is", "int8"])
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--print-only", action="store_true")
    args = parser.parse_args()
    if args.side is not None:
        side = Side(args.work, args.weights[0], args.side)
        print(json.dumps(side.figures(args.steps)))
        side.close()
        return
    directory = make_model(args.work / "serve-model")
    rows = []
    for weights in args.weights:
        with contextlib.nullcontext() if args.print_only else quiet_machine():
            rows += measure(directory, weights, args.pairs, args.steps)
    command = f"python benchmarks/serve_tensor_parallel.py --pairs {args.pairs} --steps {args.steps}"
    report = {**circumstances(command), "target": TARGET, "rows": rows}
    print("\n".join(SERVING["serve_tensor_parallel"](report)))
    if not args.print_only:
        write_whole(RESULT, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
