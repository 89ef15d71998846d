"""Mutation testing: small mistakes are put into the code that decides, and the tests should notice each of them.

    python benchmarks/mutants.py [--module MODULE ...] [--draw N] [--seed N]

The mutants are a random draw of all that `mutations.py` finds in a module, and those that benchmarks/mutants.toml
names; of a header of C++, the latter alone. That file also says which tests judge a module, and why a survivor may
survive. Everything happens in a copy of
src/ and tests/: a mutant is written there, its tests are run, and the file is put back. A mutant is killed if a test
fails, or if the tests take many times as long as without it. A run over all modules writes docs/mutants.md; the script
ends with 1 where a named mutant survives. Outcomes are kept in .mutants.json and hold as long as src/, the module's
test files and its mutants stay the same; without that file everything is run again.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome
from mutations import Mutant, changed, mutants_of

from whet.files import write_whole

ROOT = Path(__file__).parents[1]
SETTINGS = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "mutants.md"
KEPT = ROOT / ".mutants.json"
MEMORY = 12 << 30  # bytes of addresses a process of the tests may have: a loop without end may fill a list
PATIENCE = 4  # a mutant is stopped after so many times the tests' time, and ten seconds


@dataclass(frozen=True)
class Fate:
    """What became of a mutant.

    Attributes:
        mutant: The mutant.
        is_killed: Whether the tests noticed it.
        note: What a named mutant is, or why a drawn one may survive; "" where nobody has said.
    """

    mutant: Mutant
    is_killed: bool
    note: str = ""


@dataclass(frozen=True)
class Module:
    """What became of one module's mutants.

    Attributes:
        name: The module's path below src/whet, without the ending .py.
        total: How many mutants there are.
        drawn: Those that were drawn.
        named: Those that the settings name.
    """

    name: str
    total: int
    drawn: list[Fate]
    named: list[Fate]


def main() -> None:
    """Test what the command line says."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", nargs="+", choices=sorted(settings["tests"]), help="these only; writes no page")
    parser.add_argument("--draw", type=int, default=settings["draw"], help="mutants of each module")
    parser.add_argument("--seed", type=int, default=settings["seed"], help="of the draw")
    args = parser.parse_args()
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    with tempfile.TemporaryDirectory(prefix="whet-mutants-") as copy:
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, Path(copy) / name)
        shutil.copy(ROOT / "pyproject.toml", copy)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(Path(copy) / "src")  # goes before the working tree, which .venv imports
        found = [judged(name, settings, args.draw, args.seed) for name in args.module or settings["tests"]]
        os.chdir(ROOT)
    print(in_words("all", [fate for module in found for fate in module.drawn]))
    if args.module is None:
        write_whole(PAGE, page(found, args.seed))
    sys.exit(any(not fate.is_killed for module in found for fate in module.named))


def judged(name: str, settings: Mapping[str, Any], num_drawn: int, seed: int) -> Module:
    """Test a module's mutants in the copy, which is the working directory, and print those that survive."""
    path = Path("src", "whet", file_of(name))
    source = path.read_text(encoding="utf-8")
    everything = mutants_of(source) if path.suffix == ".py" else []
    drawn = random.Random(f"{seed} {name}").sample(everything, min(num_drawn, len(everything)))
    drawn.sort(key=lambda mutant: mutant.line)
    named = []
    for entry in (entry for entry in settings["named"] if entry["module"] == name):
        assert source.count(entry["old"]) == 1, f"{name} has not one place like {entry['old']}"
        named.append((changed(source, source.replace(entry["old"], entry["new"])), entry["what"]))
    killed = killed_of(path, source, [*drawn, *(mutant for mutant, _ in named)], settings["tests"][name])
    notes = {(e["module"], e["function"], e["old"], e["new"]): e["why"] for e in settings.get("explained", [])}
    found = Module(
        name,
        len(everything),
        [Fate(mutant, next(killed), notes.get((name, *mutant.identity), "")) for mutant in drawn],
        [Fate(mutant, next(killed), what) for mutant, what in named],
    )
    for fate in (*found.drawn, *found.named):
        if not fate.is_killed:
            print(f"{path}:{fate.mutant.line}: survived. {fate.note}\n{diff(fate.mutant)}")
    print(in_words(name, found.drawn), flush=True)
    return found


def file_of(name: str) -> str:
    """Return the file of a module."""
    return name if name.endswith(".h") else f"{name}.py"


def killed_of(path: Path, source: str, mutants: Sequence[Mutant], tests: Sequence[str]) -> Iterator[bool]:
    """Return for each mutant of a file whether the tests notice it, as it was kept or as it is found now."""
    digest = hashlib.sha256()
    sources = sorted(file for ending in ("py", "h", "cpp") for file in Path("src", "whet").rglob(f"*.{ending}"))
    for file in (*sources, *map(Path, tests)):
        digest.update(file.read_bytes())
    for mutant in mutants:
        digest.update(mutant.source.encode())
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    key = f"{path} {digest.hexdigest()}"
    if key not in kept:
        kept[key] = run_all(path, source, mutants, tests)
        write_whole(KEPT, json.dumps(kept))
    return iter(kept[key])


def run_all(path: Path, source: str, mutants: Sequence[Mutant], tests: Sequence[str]) -> list[bool]:
    """Run the tests on each mutant; end the script where they fail without any."""
    command = shlex.join([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests])
    began = time.monotonic()
    outcome, output = run_tests(command, 600)
    if outcome is not TestOutcome.SURVIVED:
        sys.exit(f"{path}: its tests fail without any mutant\n{output}")
    limit_s = PATIENCE * (time.monotonic() - began) + 10
    killed = []
    for mutant in mutants:
        try:
            path.write_text(mutant.source, encoding="utf-8")
            killed.append(run_tests(command, limit_s)[0] is TestOutcome.KILLED)
        finally:
            path.write_text(source, encoding="utf-8")
    return killed


def outcome_of(fate: Fate) -> str:
    """Return a mutant's fate in a word."""
    return "killed" if fate.is_killed else "survived"


def diff(mutant: Mutant) -> str:
    """Return what was changed, as a diff without context."""
    return f"- {mutant.old}\n+ {mutant.new}"


def in_words(name: str, fates: Sequence[Fate]) -> str:
    """Return how many mutants were killed."""
    killed = sum(fate.is_killed for fate in fates)
    return f"{name}: {killed} of {len(fates)} killed" + (f", {killed / len(fates):.0%}" if fates else "")


def page(modules: Sequence[Module], seed: int) -> str:
    """Return docs/mutants.md: the counts of each module, the named mutants, and the survivors with their reasons."""
    everything = Module("all", sum(m.total for m in modules), [f for m in modules for f in m.drawn], [])
    rows = []
    for module in (module for module in [*modules, everything] if module.drawn):
        num, killed = len(module.drawn), sum(fate.is_killed for fate in module.drawn)
        rows.append(f"| {module.name} | {module.total} | {num} | {killed} | {num - killed} | {killed / num:.0%} |")
    named = [
        f"| {fate.note} | {file_of(module.name)}:{fate.mutant.line} | `{fate.mutant.old}` | `{fate.mutant.new}` "
        f"| {outcome_of(fate)} |"
        for module in modules
        for fate in module.named
    ]
    survivors = [
        f"**{file_of(module.name)}:{fate.mutant.line}**, in `{fate.mutant.function}`. "
        f"{fate.note or 'Nobody has explained this one yet.'}\n\n```diff\n{diff(fate.mutant)}\n```"
        for module in modules
        for fate in module.drawn
        if not fate.is_killed
    ]
    return PAGE_TEXT.format(
        seed=seed, rows="\n".join(rows), named="\n".join(named), survivors="\n\n".join(survivors) or "None."
    )


PAGE_TEXT = """# Would a test notice?

`make mutants` puts one small mistake at a time into the code that decides: another comparison, a number that is off by
one, a statement left out. A mutant is killed if one of its module's tests fails or finds no end. One that survives
shows a rule that no test holds, or changes nothing that anybody could see. `benchmarks/mutants.py` writes this page.
The mutants are a random draw (seed {seed}) of all that there are in Python; paths are below src/whet.

| module | all mutants | drawn | killed | survived | share killed |
|---|---|---|---|---|---|
{rows}

## Mutants that must never survive

These are made in every run, beside the draw.

| mistake | place | line | mutant | outcome |
|---|---|---|---|---|
{named}

## Survivors of the draw

{survivors}
"""

if __name__ == "__main__":
    main()
