"""Judge the published recipes of `whet tune` again: does each still keep the quality, and how far is its worst column?

    python benchmarks/judge_recipes.py [--only bert-base,docs-gpt] [--recipe openvino]

Reads the recipes from docs/results/demo.json and docs/results/peers*.json, builds, saves and loads each on its model
(bert-base, vit-base and resnet-50 with weights at random, as in `tune_peers.py`), and judges it as a trial is judged.
Nothing is timed, so it may run on a busy machine. A recipe that needs bfloat16 in hardware is judged where it is
emulated too, which may take more than half an hour. Recipes of trainings are proved by losses, not by outputs, and are
not among them.

Writes docs/results/judge_recipes.json. Rows of recipes that were not judged this time stay, and a published recipe that
never was has a row that says so.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from circumstances import circumstances
from peers import make_hf_directories

from whet.core.recipe import Recipe, Step
from whet.core.workload import examine
from whet.files import write_whole
from whet.measure.machine import describe
from whet.tuner.agreement import agree
from whet.tuner.batch import with_free_batch
from whet.tuner.goal import MAX_DROP
from whet.tuner.trial import judge, make_variant
from whet.workloads import BUILTIN, resolve

RESULTS = Path(__file__).parents[1] / "docs" / "results"
OUT = RESULTS / "judge_recipes.json"
NOT_JUDGED = "not judged"


def main() -> None:
    """Judge the recipes, and write each row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of models, as a list with commas")
    parser.add_argument("--recipe", default="", help="only recipes that hold this word")
    given = parser.parse_args()
    rows = {row["name"] + row["recipe"]: row for row in _earlier()}
    with tempfile.TemporaryDirectory(prefix="whet-judge-") as scratch:
        directories: dict[str, Path] = {}
        for (name, recipe), places in published().items():
            if (given.only and name not in given.only.split(",")) or given.recipe not in recipe:
                unknown = {"name": name, "recipe": recipe, "published_in": places, "status": NOT_JUDGED}
                rows.setdefault(name + recipe, unknown)
                continue
            if name not in BUILTIN and not directories:
                directories = make_hf_directories(Path(scratch) / "models")
            target = name if name in BUILTIN else f"hf:{directories[name]}"
            judged = _judged(target, recipe, Path(scratch))
            row = {"name": name, "recipe": recipe, "published_in": places, **judged, "chip": describe().chip}
            print(f"{name}: {recipe}: {row['status']}, {row['words']}", flush=True)
            rows[name + recipe] = row
            _write(rows)
    _write(rows)


def _write(rows: dict[str, dict[str, Any]]) -> None:
    report = {**circumstances("python benchmarks/judge_recipes.py"), "max_drop": MAX_DROP, "rows": list(rows.values())}
    write_whole(OUT, json.dumps(report, indent=1) + "\n")


def published() -> dict[tuple[str, str], list[str]]:
    """Return the files in which each recipe is published, by model and recipe in words."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted([RESULTS / "demo.json", *RESULTS.glob("peers*.json")]):
        content = json.loads(file.read_text(encoding="utf-8"))
        for name, recipe in _recipes(content):
            found.setdefault((name, recipe), []).append(file.name)
    return found


def _recipes(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for row in content.get("models", []):
        yield row["name"], row["recipe"]
    for row in content.get("workloads", []):
        yield row["target"], str(Recipe(steps=row["steps"]))


def _earlier() -> list[dict[str, Any]]:
    return list(json.loads(OUT.read_text(encoding="utf-8"))["rows"]) if OUT.exists() else []


def steps_in(recipe: str) -> tuple[Step, ...]:
    """Return the steps of a recipe in words, as `str(Recipe)` writes it."""
    return tuple(map(_step, recipe.split(" + "))) if recipe != "original" else ()


def _step(words: str) -> Step:
    technique, _, inside = words.removesuffix(")").partition("(")
    options = dict(pair.split("=", 1) for pair in inside.split(", ") if pair)
    return Step(technique=technique, options={key: _value(value) for key, value in options.items()})


def _value(words: str) -> Any:
    try:
        return json.loads(words)
    except ValueError:
        return words


def _judged(target: str, recipe: str, scratch: Path) -> dict[str, Any]:
    """Build a recipe, and return how it was judged."""
    began = time.monotonic()
    examined, batch = with_free_batch(examine(resolve(target)))
    quality = examined.workload.quality
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        artefact, _, differs = make_variant(examined, steps_in(recipe), Path(directory) / "model", batch)
        agreement = agree(examined, artefact.run)
        found = judge(examined, artefact, agreement, MAX_DROP, differs)
    return {
        "status": found.status,
        "words": found.reason or f"drop {found.drop:.2g}",
        "judged_by": quality.name if quality else "agreement",
        "drop": found.drop,
        **agreement.model_dump(),
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    main()
