"""Measure what structured output costs a step: 16 sequences with a structure and without one, in turns.

    python benchmarks/guided.py --work DIR [--turns 12] [--steps 48]     # writes docs/results/guided.json

The model is that of serve_peers.py (Llama's shape, 246 million weights at random, int8), with a byte-level vocabulary
of 32,000 tokens trained on Python's own library. Each turn runs 16 fresh sequences with prompts of equal lengths; its
figure is the median step of those in which all sequences make one token. Turns with a structure and without one
alternate, and the cost is the ratio of neighbours, with a 95% bootstrap interval. "waited" is the part of a step in
which the masks were not ready when the model was. --print-only measures on a busy machine too, and writes nothing.
"""

import argparse
import contextlib
import json
import statistics
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from circumstances import circumstances
from quietly import quiet_machine
from rich.console import Console
from rich.table import Table
from serving_peers.model import make_model
from tokenizers import decoders, models, pre_tokenizers, trainers

from whet.files import write_whole
from whet.models.families import open_model
from whet.server.admission import Admission
from whet.server.assembly import assemble
from whet.server.masks import Masking
from whet.server.options import EngineOptions
from whet.server.output_constraint import OutputConstraint
from whet.server.sampling_params import SamplingParams
from whet.server.stepper import Stepper
from whet.server.text import Tokenizer

RESULT = Path(__file__).parents[1] / "docs" / "results" / "guided.json"
NUM_SEQS, NUM_PROMPT, MAX_LEN, VOCAB = 16, 32, 512, 32_000
TARGET = 0.05  # of a step
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "mail": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["new", "paid", "blocked"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "mail", "tags", "address"],
    "additionalProperties": False,
}
STRUCTURES = {  # none of them ends within a turn
    "JSON schema": OutputConstraint.json_schema({"type": "array", "minItems": 1000, "items": _PERSON}),
    "any JSON": OutputConstraint.json_schema({"type": "array", "minItems": 1000}),
    "expression": OutputConstraint.regex("([a-z]+ [0-9]{2,5}; )+"),
    "GBNF": OutputConstraint.grammar('root ::= (word sep)+\nword ::= [a-z]+\nsep ::= " " | ", " | "; "'),
}


@dataclass(frozen=True)
class Turn:
    """A turn has two medians, in µs: of its steps, and of the wait for masks in them."""

    step_us: float
    waited_us: float


class Bench:
    """Runs turns on one model."""

    def __init__(self, directory: Path) -> None:
        tokenizer = Tokenizer(directory)
        model = open_model(directory, weights="int8")
        options = EngineOptions(weights="int8", speculation="off", max_num_seqs=NUM_SEQS)
        self._stepper = assemble(model, options, MAX_LEN)
        self._admission = Admission(tokenizer, model.vocab_size, MAX_LEN)
        self._waits: list[float] = []
        self._watch(self._stepper)

    def turn(self, structure: OutputConstraint | None, num_steps: int) -> Turn:
        """Run fresh sequences for so many steps, with the structure or without any."""
        requests = []
        for seed in range(NUM_SEQS):
            prompt = np.random.default_rng(seed).integers(300, VOCAB, NUM_PROMPT).tolist()
            params = SamplingParams(temperature=0.8, seed=seed, max_tokens=400, ignore_eos=True, structure=structure)
            requests.append(self._admission.request(prompt, params))
            self._stepper.scheduler.add(requests[-1])
        steps: list[float] = []
        self._waits.clear()
        while len(steps) < num_steps:
            began = time.perf_counter()
            news = self._stepper.step()
            if len(news) == NUM_SEQS and all(request.num_output > 1 for request in requests):
                steps.append(1e6 * (time.perf_counter() - began))
        if any(request.is_finished for request in requests):
            raise RuntimeError("a sequence ended within a turn")
        for request in requests:
            self._stepper.abort(request)
        return Turn(statistics.median(steps), 1e6 * statistics.median(self._waits[-num_steps:]))

    def _watch(self, stepper: Stepper) -> None:
        """Time how long each step waits for its masks."""
        begin = stepper._masks.begin

        def watched(rows: Any) -> Masking:
            masking = begin(rows)

            def wait() -> Any:
                began = time.perf_counter()
                masks = masking()
                self._waits.append(time.perf_counter() - began)
                return masks

            return wait

        stepper._masks.begin = watched  # type: ignore[method-assign]


def measure(bench: Bench, name: str, num_turns: int, num_steps: int) -> dict[str, Any]:
    """Return the figures of one kind of structure."""
    pairs: list[tuple[Turn, Turn]] = []
    bench.turn(STRUCTURES[name], num_steps)  # compiled and warm from here on
    for number in range(num_turns):
        order = [None, STRUCTURES[name]] if number % 2 else [STRUCTURES[name], None]
        done = {structure is not None: bench.turn(structure, num_steps) for structure in order}
        pairs.append((done[False], done[True]))
    ratios = np.array([guided.step_us / plain.step_us for plain, guided in pairs])
    drawn = np.random.default_rng(0).choice(ratios, (4000, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return {
        "structure": name,
        "plain_us": statistics.median(plain.step_us for plain, _ in pairs),
        "guided_us": statistics.median(guided.step_us for _, guided in pairs),
        "waited_us": statistics.median(guided.waited_us for _, guided in pairs),
        "cost": float(np.median(ratios)) - 1,
        "cost_ci95": [float(low) - 1, float(high) - 1],
        "turns": [[asdict(plain), asdict(guided)] for plain, guided in pairs],
    }


def trained_tokenizer(directory: Path) -> None:
    """Give the model a vocabulary as real ones are: with words, parts of words and spaces before them."""
    described = tokenizers.Tokenizer(models.BPE())
    described.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    described.decoder = decoders.ByteLevel()
    files = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*/*.py"))[:600]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<unk>", "<s>", "</s>"]
    described.train(
        files,
        trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    if described.get_vocab_size() != VOCAB:
        raise RuntimeError(f"the vocabulary has {described.get_vocab_size()} tokens")
    write_whole(directory / "tokenizer.json", described.to_str())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the model is, or is made")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--print-only", action="store_true")
    args = parser.parse_args()
    directory = make_model(args.work / "guided-model")
    if not (directory / "trained").exists():
        trained_tokenizer(directory)
        (directory / "trained").touch()
    bench = Bench(directory)
    rows = []
    for name in STRUCTURES:
        with contextlib.nullcontext() if args.print_only else quiet_machine():
            rows.append(measure(bench, name, args.turns, args.steps))
    table = Table("structure", "plain, ms", "with masks, ms", "cost (95%)", "waited, ms")
    for row in rows:
        low, high = row["cost_ci95"]
        times = (f"{row[key] / 1e3:.2f}" for key in ("plain_us", "guided_us"))
        cost = f"{row['cost']:+.1%} ({low:+.1%} to {high:+.1%})"
        table.add_row(row["structure"], *times, cost, f"{row['waited_us'] / 1e3:.3f}")
    Console().print(table)
    if not args.print_only:
        command = f"python benchmarks/guided.py --turns {args.turns} --steps {args.steps}"
        report = {**circumstances(command), "num_seqs": NUM_SEQS, "vocab_size": VOCAB, "target": TARGET, "rows": rows}
        write_whole(RESULT, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
