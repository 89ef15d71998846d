"""Apply `whet audit --fix`, safe and unsafe, to public repositories; import and test them before and after.

    python benchmarks/audit_fixes.py CHECKOUTS [--out docs/audit-fixes.md] [--test-seconds 20] [NAME ...]

Every directory in CHECKOUTS is a repository; a file `.revision` in it may name its commit. Nothing is changed in place:
each repository is copied three times (as it is, with safe fixes, with all fixes). A module that a fix changes is
byte-compiled and imported in all three, and test files that name such a module are run in all three, each set for at
most `--test-seconds`. A test counts as a new failure where it passed before and fails after the fixes. Runs the code of
the repositories: use it in an environment where that does no harm.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from whet_audit.fixing import unified_diff
from whet_audit.run import run
from whet_audit.settings import Settings

_IMPORT_SECONDS = 60
_MOST_TEST_FILES = 8
_IGNORED = shutil.ignore_patterns(".git", "*.ipynb", "node_modules")
_IMPORTER = """
import importlib, importlib.util, os, py_compile, signal, sys
import torch
root, seconds = sys.argv[1], int(sys.argv[2])
for line in sys.stdin.read().splitlines():
    path, name, place = line.split("\\t")
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        signal.alarm(seconds)
        os.chdir(root)
        sys.argv = [path]
        sys.path[:0] = [place, os.path.dirname(path)]
        code = 1
        try:
            py_compile.compile(path, doraise=True)
            if "." in name:
                importlib.import_module(name)
            else:
                spec = importlib.util.spec_from_file_location(name, path)
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module
                spec.loader.exec_module(module)
            code = 0
        except BaseException:
            pass
        os._exit(code)
    _, status = os.wait()
    print(path, int(status == 0), sep="\\t", flush=True)
"""
_PLUGIN = """
import os
def pytest_runtest_logreport(report):
    if report.when == "call" or report.failed:
        with open(os.environ["OUTCOMES"], "a") as file:
            file.write(f"{report.outcome}\\t{report.nodeid}\\n")
"""


@dataclass
class Mode:
    """What one kind of fixes did to a repository. imports and tests: what worked before, and of these what after."""

    num_fixes: int = 0
    num_files: int = 0
    imports_before: int = 0
    imports_after: int = 0
    broken_imports: list[str] = field(default_factory=list)
    tests_before: int = 0
    tests_after: int = 0
    broken_tests: list[str] = field(default_factory=list)


@dataclass
class Trial:
    """A repository and what both kinds of fixes did to it."""

    name: str
    revision: str
    num_files: int
    modes: dict[str, Mode]


def try_repository(source: Path, test_seconds: int, diffs: Path | None) -> Trial:
    """Fix copies of a repository, and import and test what changed."""
    with tempfile.TemporaryDirectory(prefix="audit-fixes-") as folder:
        copies = {name: Path(folder) / name / source.name.partition("__")[2] for name in ("plain", "safe", "all")}
        for copy in copies.values():
            shutil.copytree(source, copy, ignore=_IGNORED, symlinks=True)
        modes = {name: _fix(copies[name], unsafe=name == "all") for name in ("safe", "all")}
        changed = sorted({path for _, paths in modes.values() for path in paths})
        if diffs is not None:
            _write_diff(copies, changed, diffs / f"{source.name}.diff")
        imported = {name: _imported(copy, changed) for name, copy in copies.items()}
        tests = _tests_of(copies["plain"], changed)
        wanted = ["plain", *(name for name, (_, paths) in modes.items() if paths)]
        passed = {name: _passed(copies[name], tests, test_seconds) for name in wanted}
        for name, (mode, paths) in modes.items():
            before = {path for path in paths if path in imported["plain"]}
            mode.broken_imports = sorted(before - imported[name])
            mode.imports_before, mode.imports_after = len(before), len(before) - len(mode.broken_imports)
            if paths:
                _compare(mode, passed["plain"], passed[name])
        revision = source / ".revision"
        return Trial(
            name=source.name.replace("__", "/"),
            revision=revision.read_text(encoding="utf-8").split()[0][:10] if revision.is_file() else "",
            num_files=sum(1 for _ in source.rglob("*.py")),
            modes={name: mode for name, (mode, _) in modes.items()},
        )


def _fix(copy: Path, *, unsafe: bool) -> tuple[Mode, list[str]]:
    """Apply fixes to a copy; the files that change, relative to it."""
    outcome = run([copy], Settings(root=copy), fix=True, unsafe=unsafe)
    for change in outcome.changes:
        Path(change.before.path).write_text(change.text, encoding=change.before.encoding, newline="")
    paths = [os.path.relpath(Path(change.before.path).absolute(), copy) for change in outcome.changes]
    return Mode(num_fixes=outcome.report.num_fixed, num_files=len(paths)), paths


def _write_diff(copies: dict[str, Path], changed: Sequence[str], out: Path) -> None:
    texts = []
    for name in ("safe", "all"):
        for path in changed:
            before, after = ((copies[kind] / path).read_text(encoding="utf-8") for kind in ("plain", name))
            if before != after:
                texts.append(f"# {name}\n{unified_diff(path, before, after)}")
    out.write_text("\n".join(texts), encoding="utf-8")


def _environment(copy: Path) -> dict[str, str]:
    places = [str(copy), str(copy / "src")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(places),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _imported(copy: Path, paths: Sequence[str]) -> set[str]:
    """The paths of those modules that can be imported."""
    lines = []
    for path in paths:
        place, name = (copy / path).parent, Path(path).stem
        while (place / "__init__.py").is_file() and place != copy:
            name, place = f"{place.name}.{name}", place.parent
        lines.append(f"{copy / path}\t{name.removesuffix('.__init__')}\t{place}")
    command = [sys.executable, "-c", _IMPORTER, str(copy), str(_IMPORT_SECONDS)]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, env=_environment(copy), check=False
    )
    found = (line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 1)
    return {os.path.relpath(path, copy) for path, ok in found if ok == "1"}


def _tests_of(copy: Path, changed: Sequence[str]) -> list[str]:
    """Test files that name a changed module, the smallest first."""
    stems = {Path(path).stem if Path(path).stem != "__init__" else Path(path).parent.name for path in changed}
    found = []
    for file in [*copy.rglob("test_*.py"), *copy.rglob("*_test.py")]:
        text = file.read_text(encoding="utf-8", errors="replace")
        path = str(file.relative_to(copy))
        if path in changed or any(f".{stem}" in text or f" {stem} " in text or f" {stem}\n" in text for stem in stems):
            found.append((len(text), path))
    return [path for _, path in sorted(found)][:_MOST_TEST_FILES]


def _passed(copy: Path, tests: Sequence[str], seconds: int) -> dict[str, bool]:
    """Whether each test passes that ends within the time."""
    if not tests or not seconds:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes"
        outcomes.touch()
        (Path(folder) / "outcomes_plugin.py").write_text(_PLUGIN, encoding="utf-8")
        environment = _environment(copy)
        environment["PYTHONPATH"] += os.pathsep + folder
        environment["OUTCOMES"] = str(outcomes)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "outcomes_plugin", "-p", "no:cacheprovider"]
        command += ["-p", "no:xdist", "--continue-on-collection-errors", "-o", "addopts=", *tests]
        with subprocess.Popen(
            command,
            cwd=copy,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        lines = [line.split("\t", 1) for line in outcomes.read_text(encoding="utf-8").splitlines()]
    failed = {name for outcome, name in lines if outcome == "failed"}
    return {name: name not in failed for outcome, name in lines if outcome != "skipped"}


def _compare(mode: Mode, before: dict[str, bool], after: dict[str, bool]) -> None:
    both = before.keys() & after.keys()
    mode.tests_before = sum(before[name] for name in both)
    mode.broken_tests = sorted(name for name in both if before[name] and not after[name])
    mode.tests_after = mode.tests_before - len(mode.broken_tests)


def write_page(tried: Sequence[Trial], out: Path) -> None:
    """Write the table as a page, and the figures beside it as JSON; those of other repositories stay as they are."""
    figures = out.parent / "results" / "audit_fixes.json"
    figures.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(figures.read_text(encoding="utf-8")) if figures.is_file() else []
    by_name = {one["name"]: Trial(**{**one, "modes": {k: Mode(**v) for k, v in one["modes"].items()}}) for one in known}
    by_name |= {trial.name: trial for trial in tried}
    trials = sorted(by_name.values(), key=lambda trial: trial.num_files)
    rows = [
        "| repository | commit | files | safe: fixes | imports | tests | all: fixes | imports | tests |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for trial in trials:
        cells = [trial.name, trial.revision, str(trial.num_files)]
        for name in ("safe", "all"):
            mode = trial.modes[name]
            cells += [f"{mode.num_fixes} in {mode.num_files}", f"{mode.imports_before} → {mode.imports_after}"]
            cells.append(f"{mode.tests_before} → {mode.tests_after}" if mode.tests_before else "–")
        rows.append(f"| {' | '.join(cells)} |")
    broken = [
        f"- {trial.name}, {name} fixes: {one}"
        for trial in trials
        for name, mode in trial.modes.items()
        for one in [*mode.broken_imports, *mode.broken_tests]
    ]
    text = _PAGE.format(
        num=len(trials),
        most=_MOST_TEST_FILES,
        files=f"{sum(trial.num_files for trial in trials):,}",
        safe=sum(trial.modes["safe"].num_fixes for trial in trials),
        all=sum(trial.modes["all"].num_fixes for trial in trials),
        imports=sum(trial.modes["all"].imports_before for trial in trials),
        tests=sum(trial.modes["all"].tests_before for trial in trials),
        rows="\n".join(rows),
        broken="\n".join(broken) or "None.",
    )
    out.write_text(text, encoding="utf-8")
    figures.write_text(json.dumps([asdict(trial) for trial in trials], indent=1) + "\n", encoding="utf-8")


_PAGE = """# Fixes tried on public code

`benchmarks/audit_fixes.py` wrote this page. It applied `whet audit --fix`, and then `--fix --unsafe-fixes`, to copies
of {num} public repositories with {files} Python files: {safe} safe fixes, {all} in all. Each module that a fix changed
was byte-compiled and imported before and after; {imports} of them could be imported before. Up to {most} test files
that name a changed module were run before and after, for at most a stated time; {tests} tests passed before.

"12 in 5" is 12 fixes in 5 files; "5 → 5" means that what worked five times before worked five times after. Modules that
could not be imported before, mostly for want of a package, are not counted.

{rows}

## What worked before and does not after

{broken}
"""


def main() -> None:
    """Try each repository, two at a time, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("docs/audit-fixes.md"))
    parser.add_argument("--diffs", type=Path, help="a directory for what the fixes changed")
    parser.add_argument("--test-seconds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    found = [path for path in sorted(args.checkouts.iterdir()) if path.is_dir()]
    found = [path for path in found if not args.names or path.name in args.names]
    found.sort(key=lambda path: sum(1 for _ in path.rglob("*.py")))
    if args.diffs is not None:
        args.diffs.mkdir(parents=True, exist_ok=True)

    with ProcessPoolExecutor(args.jobs) as pool:
        running = [pool.submit(try_repository, source, args.test_seconds, args.diffs) for source in found]
        for done in as_completed(running):
            print(json.dumps(asdict(done.result())), flush=True)
            write_page([one.result() for one in running if one.done()], args.out)


if __name__ == "__main__":
    main()
