"""Train one model for one task of benchmarks/recall.py, and ask it what it remembers, by distance."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from recall_models import LtmArm, Shape, TitansArm, build, num_parameters
from recall_tasks import DIGITS, NO_LABEL, VALUES, VOCAB_SIZE, Examples, copy, mqar, passkey, recall
from torch import Tensor

SEGMENT, PAIRS, COPIED = 32, 8, 12
DISTANCES = (2, 4, 8, 16, 32, 64)  # segments
FARTHEST = 128  # of the task `recall`, for benchmarks/memory_table.py
DEPTHS = tuple(step / 20 for step in range(21))
TOKENS_PER_STEP, TOKENS = 2048, 3_500_000
FIRST_STAGE = 0.5  # of the tokens, at most: binding is learned on short texts
MQAR_VOCAB, MQAR_SIZES, MQAR_EXAMPLES = 512, ((64, 4), (128, 8), (256, 16)), 20_000  # tokens and pairs of a row
TEST_QUERIES, TEST_TOKENS = 2000, 2**17  # of each test, at most
CHOICE_TOKENS = 2**15  # of the texts by which the learning rate is chosen
_WARM_UP, _LAST_LR, _DECAY, _CLIP = 0.05, 0.1, 0.1, 1.0
_RECENT, _GOES_ON, _LEARNED = 20, 0.9, 0.995  # steps, and accuracies over them
_ROWS_AT_ONCE = 32
_FIRST_TEST_SEED = 10**9

Answer = Callable[[Tensor, Tensor], Tensor]
Make = Callable[[int, int], Examples]
"""Makes rows from a seed: so many rows for a test, rows of so many tokens in all for a stage of a training."""


@dataclass(frozen=True)
class Task:
    """Describe a task: how it grows while a model is trained, and how the model is tested.

    Attributes:
        shape: The vocabulary, the segment and the longest text.
        chance: The accuracy of the best guess of a model that has not read the answer.
        chance_says: That number in words.
        stages: What makes rows, from the shortest to the longest texts.
        tests: What makes the rows of each test, by its name.
        queries: The labels of a row of a test.
        shuffled: The name of the test that is asked again with the memory of other rows; "" for none.
    """

    shape: Shape
    chance: float
    chance_says: str
    stages: tuple[Make, ...]
    tests: Mapping[str, Make]
    queries: int
    shuffled: str = ""


@cache
def _mqar_examples(seed: int) -> tuple[Examples, ...]:
    share = MQAR_EXAMPLES // len(MQAR_SIZES)
    return tuple(mqar(share, length, pairs, seed=seed, vocab_size=MQAR_VOCAB) for length, pairs in MQAR_SIZES)


def _mqar_rows(num_sizes: int, num_tokens: int, seed: int) -> Examples:
    """Draw rows of one of the shortest sizes from the 20,000 examples."""
    draw = np.random.default_rng(seed)
    examples = _mqar_examples(0)[draw.integers(num_sizes)]
    num_rows, length = examples.tokens_BT.shape
    rows = draw.integers(num_rows, size=num_tokens // length)
    return Examples(*(part[rows] for part in (examples.tokens_BT, examples.labels_BT, examples.distances_BT)))


def _tasks() -> dict[str, Task]:
    """Return the tasks by name."""
    shape = Shape(VOCAB_SIZE, SEGMENT, SEGMENT * (FARTHEST + 1))
    up_to = (1, 2, 3, 5, 8, 15)
    longer = (2, 3, 4, 6, 9, 16)

    def stage(make: Make, segments: int) -> Make:
        return lambda num_tokens, seed: make(num_tokens // (SEGMENT * segments), seed)

    def recalled(distances: tuple[int, ...]) -> Make:
        return lambda num, seed: recall(num, SEGMENT, PAIRS, distances, seed=seed)

    def told(segments: int, depths: tuple[float, ...]) -> Make:
        return lambda num, seed: passkey(num, SEGMENT, segments, depths, seed=seed)

    def copied(segments: int) -> Make:
        return lambda num, seed: copy(num, SEGMENT, segments, COPIED, seed=seed)

    def asked(length: int, pairs: int) -> Make:
        return lambda num, seed: mqar(num, length, pairs, seed=seed, vocab_size=MQAR_VOCAB)

    at_depth = {f"depth {depth:.0%} of 17": told(17, (depth,)) for depth in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)}
    half = MQAR_VOCAB // 2
    return {
        "recall": Task(
            shape,
            1 / len(VALUES),
            f"1 of {len(VALUES)} values",
            tuple(stage(recalled(tuple(range(1, far + 1))), far + 1) for far in up_to),
            {f"distance {far}": recalled((far,)) for far in (*DISTANCES, FARTHEST)},
            PAIRS,
            "distance 16",
        ),
        "passkey": Task(
            shape,
            1 / len(DIGITS),
            f"1 of {len(DIGITS)} digits; 100 % depth lies in the last segment",
            tuple(stage(told(segments, DEPTHS), segments) for segments in longer),
            {**at_depth, "depth 0% of 33": told(33, (0.0,))},
            4,
            "depth 0% of 17",
        ),
        "copy": Task(
            shape,
            float(np.mean([1 / (len(VALUES) - place) for place in range(COPIED)])),
            f"1 of the {len(VALUES)} to {len(VALUES) - COPIED + 1} tokens that were not copied yet",
            tuple(stage(copied(segments), segments) for segments in longer),
            {f"distance {far}": copied(far + 1) for far in DISTANCES},
            COPIED,
            "distance 16",
        ),
        "mqar": Task(
            Shape(MQAR_VOCAB, SEGMENT, max(length for length, _ in MQAR_SIZES)),
            1 / half,
            f"1 of {half} values; without a memory, queries of the first segment can be answered",
            tuple(partial(_mqar_rows, num) for num in range(1, len(MQAR_SIZES) + 1)),
            {f"{pairs} pairs in {length} tokens": asked(length, pairs) for length, pairs in MQAR_SIZES},
            MQAR_SIZES[0][1],
        ),
    }


TASKS = _tasks()


@dataclass(frozen=True)
class Run:
    """Name one training: a task, an arm, a seed, a learning rate and the tokens that it may read at most."""

    task: str
    arm: str
    seed: int
    lr: float
    tokens: int = TOKENS

    @property
    def name(self) -> str:
        """Return the name of the run's file."""
        return f"{self.task}-{self.arm.replace(' ', '-')}-{self.seed}-{self.lr:g}"


def train_and_test(run: Run) -> dict[str, Any]:
    """Train a model and test it.

    Returns:
        The run, what it took, and for each test how many answers, and how many rows as a whole, were right.
    """
    task = TASKS[run.task]
    began = time.perf_counter()
    model = build(run.arm, task.shape, run.seed)
    learned = _train(model, task, run)
    seconds = time.perf_counter() - began
    model.eval()
    with torch.no_grad():
        asked = {name: _test_rows(make, task, _test_seed(name)) for name, make in task.tests.items()}
        tests = {name: _score(model, examples) for name, examples in asked.items()}
        chosen = _score(model, task.stages[-1](CHOICE_TOKENS, _test_seed("choice")))
        others = None
        if task.shuffled and isinstance(model, LtmArm):
            others = _score(model, asked[task.shuffled], model.logits_with_the_memory_of_others)
        is_local = _ignores(model, task)
    return {
        **vars(run),
        "parameters": num_parameters(model),
        **learned,
        "seconds": seconds,
        "chance": task.chance,
        "chosen_by": chosen["right"] / chosen["answers"],
        "tests": tests,
        "shuffled": others,
        "ignores_the_first_segment": is_local,
    }


def _train(model: LtmArm | TitansArm, task: Task, run: Run) -> dict[str, Any]:
    """Train until the last stage is learned, or the tokens are spent.

    A stage ends when it is learned. The first one ends at half of the tokens at the latest; the others share the rest.
    """
    decayed = [weight for weight in model.parameters() if weight.dim() == 2]
    others = [weight for weight in model.parameters() if weight.dim() != 2]
    groups = [{"params": decayed, "weight_decay": _DECAY}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    num_later, spent, stage, steps = len(task.stages) - 1, 0, 0, 0
    recent: deque[float] = deque(maxlen=_RECENT)
    reached: list[int] = []
    while spent < run.tokens:
        for group in optimiser.param_groups:
            group["lr"] = run.lr * _schedule(spent / run.tokens)
        seed = (run.seed + 1) * 10**6 + steps
        examples = task.stages[stage](TOKENS_PER_STEP, seed)
        tokens_BT, labels_BT = torch.from_numpy(examples.tokens_BT), torch.from_numpy(examples.labels_BT)
        where_BT = labels_BT != NO_LABEL
        logits_NV = model.logits_at(tokens_BT, where_BT)
        loss = F.cross_entropy(logits_NV, labels_BT[where_BT])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimiser.step()
        recent.append(float((logits_NV.argmax(-1) == labels_BT[where_BT]).float().mean()))
        spent, steps = spent + tokens_BT.numel(), steps + 1
        accuracy = float(np.mean(recent)) if len(recent) == _RECENT else 0.0
        is_last = stage == len(task.stages) - 1
        if is_last and accuracy >= _LEARNED:
            break
        latest = FIRST_STAGE + (1 - FIRST_STAGE) * stage / num_later
        if not is_last and (accuracy >= _GOES_ON or spent >= latest * run.tokens):
            stage += 1
            reached.append(spent)
            recent.clear()
    return {"steps": steps, "tokens_read": spent, "stages_after_tokens": reached, "last_loss": float(loss.detach())}


def _schedule(progress: float) -> float:
    """Return the learning rate's factor: a linear warm-up, then a linear decay to a tenth."""
    return min(1.0, progress / _WARM_UP + 0.02) * (1 - (1 - _LAST_LR) * progress)


def _test_rows(make: Make, task: Task, seed: int) -> Examples:
    """Return rows with 2,000 labels, or with 2^17 tokens where that is less."""
    length = make(1, seed).tokens_BT.shape[1]
    return make(min(TEST_QUERIES // task.queries, max(1, TEST_TOKENS // length)), seed)


def _score(model: LtmArm | TitansArm, examples: Examples, answer: Answer | None = None) -> dict[str, int]:
    """Return how many answers, and how many whole rows, are right."""
    right = answers = whole = 0
    for begin in range(0, len(examples.tokens_BT), _ROWS_AT_ONCE):
        part = examples.rows(begin, begin + _ROWS_AT_ONCE)
        tokens_BT, labels_BT = torch.from_numpy(part.tokens_BT), torch.from_numpy(part.labels_BT)
        where_BT = labels_BT != NO_LABEL
        is_right = torch.ones_like(where_BT)
        is_right[where_BT] = (answer or model.logits_at)(tokens_BT, where_BT).argmax(-1) == labels_BT[where_BT]
        right, answers = right + int((is_right & where_BT).sum()), answers + int(where_BT.sum())
        whole += int(is_right.all(1).sum())
    return {"right": right, "answers": answers, "whole": whole, "rows": len(examples.tokens_BT)}


def _ignores(model: LtmArm | TitansArm, task: Task) -> bool | None:
    """Return whether what the first segment says changes nothing behind it; None where that is not asked."""
    if not isinstance(model, LtmArm):
        return None
    return model.ignores_the_first_segment(torch.from_numpy(next(iter(task.tests.values()))(8, 1).tokens_BT))


def _test_seed(name: str) -> int:
    return _FIRST_TEST_SEED + sum(name.encode())
