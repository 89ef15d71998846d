"""How good the recipes are that a search has found after 5, 10 and 20 trials, by replay against recorded tables.

    python benchmarks/search_replay.py

Every strategy chooses from the recipes of a table that `benchmarks/search_tables.py` recorded, and is told what a trial
of each found. Its regret is what the best recipe of the table reaches over the best that it has found, less one: of
speedups where speed is asked for, of peaks where memory is. The original counts as found from the start. What a
strategy draws at random is drawn anew with each of 30 seeds. Writes docs/results/search_replay.json.
"""

import json
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import optuna
from circumstances import circumstances
from search_tables import TABLES, recipes, space_of

from whet.core.recipe import Recipe, Step
from whet.files import write_whole
from whet.tuner.goal import Goal
from whet.tuner.plan import next_recipe
from whet.tuner.records import TrialRecord
from whet.tuner.search import SearchTime, search_space
from whet.tuner.space import Space
from whet.tuner.study import Study
from whet.tuner.training.space import worth_trying
from whet.tuner.training.trained_kind import within_limits

RESULTS = TABLES.parent
COUNTS = (5, 10, 20)
NUM_SEEDS = 30

Found = list[float]
"""The best figure after each trial, where lower is better, the original's before the first."""


@dataclass(frozen=True)
class Replay:
    """Hold a table and a goal.

    Attributes:
        original: The original's figure for the goal.
        found: What a trial of each recipe found, by its steps.
    """

    name: str
    goal: Goal
    space: Space
    original: float
    found: dict[tuple[Step, ...], TrialRecord]

    def value(self, steps: Sequence[Step]) -> float:
        """Return a recipe's figure, infinite where it was refused, failed or rejected."""
        record = self.found[tuple(steps)]
        value = self.goal.value(record) if record.status == "done" else None
        return math.inf if value is None else value

    @property
    def best(self) -> float:
        """Return the best figure of the table."""
        return min(self.original, *(self.value(steps) for steps in self.found))

    def regret(self, value: float) -> float:
        """Return how far a figure is from the best one, as a fraction of it."""
        return math.exp(value - self.best) - 1 if self.goal.asks_for_speed else value / self.best - 1

    def best_so_far(self, tried: Sequence[Sequence[Step]]) -> Found:
        """Return the best figure after each trial."""
        best = [self.original]
        for steps in tried:
            best.append(min(best[-1], self.value(steps)))
        return best


def main() -> None:
    tables = {path.stem: json.loads(path.read_bytes()) for path in sorted(TABLES.glob("*.json"))}
    rows = [row for name, table in tables.items() for replay in replays(name, table) for row in rows_of(replay)]
    report = circumstances("python benchmarks/search_replay.py")
    report["tables"] = [
        {"target": table["target"], "recipes": len(table["records"]), "chip": table["machine"]["chip"]}
        for table in tables.values()
    ]
    write_whole(
        RESULTS / "search_replay.json",
        json.dumps({**report, "counts": COUNTS, "seeds": NUM_SEEDS, "rows": rows}, indent=1) + "\n",
    )


def replays(name: str, table: dict[str, Any]) -> Iterator[Replay]:
    """Yield a table with each goal that it can tell of."""
    space = space_of(table)
    records = [TrialRecord.model_validate(record) for record in table["records"]]
    missing = {recipe.key for recipe in recipes(space)} - {record.key for record in records}
    if missing:
        raise SystemExit(f"the table {name} lacks {len(missing)} recipes; run benchmarks/search_tables.py again")
    yield _replay(name, Goal(), space, records, 0.0)
    if space.original_bytes and any(space.shrink([e.default]) > 1.2 for e in space.techniques.values()):
        yield _replay(name, Goal("memory").for_training(), space, records, float(space.original_bytes))


def _replay(name: str, goal: Goal, space: Space, records: Sequence[TrialRecord], original: float) -> Replay:
    limited = [within_limits(goal, record) if record.speedup else record for record in records]
    return Replay(name, goal, space, original, {record.key: record for record in limited})


def rows_of(replay: Replay) -> Iterator[dict[str, Any]]:
    """Yield the regrets of each strategy."""
    strategies: dict[str, Callable[[int], Found]] = {
        "whet": lambda seed: _planned(replay, replay.space),
        "whet, without the profile's bounds": lambda seed: _planned(replay, without_bounds(replay.space)),
        "Optuna's TPE alone": partial(_sampled, replay),
        "random order": partial(_shuffled, replay),
    }
    for name, found_with in strategies.items():
        seeds = range(1 if name.startswith("whet") else NUM_SEEDS)
        runs = [found_with(seed) for seed in seeds]
        regrets = {str(count): [replay.regret(found[min(count, len(found) - 1)]) for found in runs] for count in COUNTS}
        yield {
            "workload": replay.name,
            "objective": replay.goal.objective,
            "strategy": name,
            "median": {count: statistics.median(values) for count, values in regrets.items()},
            "worst": {count: max(values) for count, values in regrets.items()},
            "trials": statistics.median(len(found) - 1 for found in runs),
        }
        row = ", ".join(f"{c}: {statistics.median(v):.1%} (at worst {max(v):.1%})" for c, v in regrets.items())
        print(f"{replay.name} {replay.goal.objective} {name}: {row}", flush=True)


def without_bounds(space: Space) -> Space:
    """Return a space whose techniques all promise the same, as if no profile had been made."""
    entries = [
        entry.model_copy(
            update={
                "variants": tuple(
                    variant.model_copy(update={"bound": 2.0, "shrink": 2.0}) for variant in entry.variants
                )
            }
        )
        for entry in space.techniques.values()
    ]
    return Space(entries, space.table, space.reference, space.original_bytes)


def _planned(replay: Replay, space: Space) -> Found:
    """Search as `whet tune` does."""
    if space.original_bytes:
        space = worth_trying(list(space.techniques.values()), replay.goal, space.original_bytes)

    def attempt(number: int, recipe: Recipe, left_s: float) -> TrialRecord:
        return replay.found[recipe.key].model_copy(update={"number": number, "predicted": space.bound(recipe.steps)})

    with tempfile.TemporaryDirectory() as scratch:
        records = search_space(
            space,
            Study.open(f"sqlite:///{scratch}/study.db", "replay"),
            replay.goal,
            SearchTime(math.inf, math.inf),
            attempt,
            propose=partial(next_recipe, space, goal=replay.goal),
            max_trials=max(COUNTS),
        )
    return replay.best_so_far([record.key for record in records])


def _sampled(replay: Replay, seed: int) -> Found:
    """Let Optuna's sampler choose. A recipe that it chooses again costs no trial."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    tried: list[tuple[Step, ...]] = []
    for _ in range(4 * max(COUNTS)):
        trial = study.ask()
        key = replay.space.recipe(trial.suggest_categorical).key
        value = replay.value(key) if key else replay.original
        if math.isinf(value):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, value)
        if key and key not in tried:
            tried.append(key)
        if len(tried) == min(max(COUNTS), len(replay.found)):
            break
    return replay.best_so_far(tried)


def _shuffled(replay: Replay, seed: int) -> Found:
    """Try recipes in an order drawn at random."""
    order = sorted(replay.found, key=str)
    random.Random(seed).shuffle(order)
    return replay.best_so_far(order[: max(COUNTS)])


if __name__ == "__main__":
    main()
