"""whet's engine beside its peers on one model, in one run: each in a fresh process a round, in random order.

    python benchmarks/serve_peers.py --work DIR --peers-python PEERS/bin/python --convert-python CONVERT/bin/python

The peers have environments of their own, because they want other versions of the same packages:

    python -m venv PEERS
    PEERS/bin/pip install torch                                      # the CPU build that whet uses too
    PEERS/bin/pip install transformers accelerate openvino-genai gguf scikit-build-core
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" PEERS/bin/pip install --no-binary llama-cpp-python llama-cpp-python
    python -m venv CONVERT
    CONVERT/bin/pip install torch "optimum-intel[openvino]"          # converts for OpenVINO, once; without
    CONVERT/bin/pip uninstall torchvision                            # this, where it is not built for that torch

llama.cpp is built from source, about five minutes on two cores, so that it uses all that this processor has. The model
is made with weights at random, then converted and quantised by each peer's own tools, under --work; what is there is
used again. Every engine is asked for the same (serving_peers/tasks.py), with prompts never seen before and a fixed
number of tokens, the most likely each time; nothing is drafted. A ratio is the geometric mean over the rounds, with a
bootstrap 95% interval; three rounds give a rough one. Nothing else should run meanwhile: an engine during whose turn
other processes were busy gets another turn.

Writes docs/results/serve_peers.json and prints the tables; `benchmarks/results.py` puts it into docs/results.md.
"""

import argparse
import json
import math
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from circumstances import circumstances
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from quietly import quiet_machine
from serving_peers.claims import FIGURES, figures, judge
from serving_peers.contender import MODEL, NUM_THREADS
from serving_peers.model import make_model
from serving_peers.tasks import TASKS

from whet.files import write_whole
from whet.measure.machine import describe, versions

CONTENDERS = {  # name -> the file in serving_peers/, and which model it loads
    "transformers bf16": ("transformers_peer", "bfloat16"),
    "llama.cpp Q8_0": ("llama_cpp", "Q8_0"),
    "llama.cpp Q4_0": ("llama_cpp", "Q4_0"),
    "openvino int8": ("openvino_genai", "int8"),
    "openvino int4": ("openvino_genai", "int4"),
    "openvino int8 tuned": ("openvino_genai", "int8-tuned"),
    "openvino int4 tuned": ("openvino_genai", "int4-tuned"),
    "whet bf16": ("whet_engine", "as-is"),
    "whet int8": ("whet_engine", "int8"),
    "whet int4": ("whet_engine", "int4"),
}
_RESULTS = Path(__file__).parents[1] / "docs" / "results" / "serve_peers.json"
_TIMEOUT_S = 1800
_DISTURBED_CORES = 0.1  # more than that busy with other things: measured again
_MAX_TRIES = 3


def main() -> None:
    arguments = _arguments()
    names = arguments.engines.split(",")
    make_model(arguments.work / MODEL)
    for name in names:
        _prepare(name, arguments)
    rounds: list[dict[str, Any]] = []
    if arguments.resume and arguments.out.exists():
        rounds = _earlier_rounds(names, arguments.out)
    for number in range(len(rounds) + 1, len(rounds) + arguments.rounds + 1):
        bandwidth = _run(["serving_peers.read_limit"], sys.executable, arguments.launcher)
        answers: dict[str, Any] = {"read_bandwidth": bandwidth}
        for name in random.Random(number).sample(names, len(names)):
            with quiet_machine():
                answers[name] = _measure(name, number, arguments)
            _note(f"round {number}: {name}" + (f": {answers[name]['failed']}" if "failed" in answers[name] else ""))
        rounds.append(answers)
        _write(names, rounds, arguments)
    _show(json.loads(arguments.out.read_text(encoding="utf-8")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the models lie, about 3 GB; made if needed")
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter with llama.cpp, OpenVINO GenAI")
    parser.add_argument("--convert-python", help="interpreter with optimum-intel (default: --peers-python)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engines", default=",".join(CONTENDERS), help="comma-separated: %(default)s")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated: %(default)s")
    parser.add_argument("--out", type=Path, default=_RESULTS)
    parser.add_argument("--resume", action="store_true", help="add rounds to those that --out has of this machine")
    parser.add_argument("--launcher", default="", help="a command put before each measured one, as 'taskset -c 0,1'")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    for name in arguments.engines.split(","):
        if name not in CONTENDERS:
            parser.error(f"no engine {name!r}; there are: {', '.join(CONTENDERS)}")
    return arguments


def _prepare(name: str, arguments: argparse.Namespace) -> None:
    engine, kind = CONTENDERS[name]
    python = _interpreter(engine, arguments)
    if engine == "openvino_genai":
        engine, python = "openvino_export", arguments.convert_python or python
    _run(["serving_peers.worker", "prepare", engine, kind, str(arguments.work)], python)


def _measure(name: str, number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """A process's answer; if others disturbed it, that of another one, and after some tries the least disturbed."""
    engine, kind = CONTENDERS[name]
    command = ["serving_peers.worker", "measure", engine, kind, str(arguments.work)]
    command += ["--tasks", arguments.tasks, "--seed", str(number)]
    answers: list[dict[str, Any]] = []
    try:
        while len(answers) < _MAX_TRIES and _disturbance(answers) > _DISTURBED_CORES:
            answers.append(_run(command, _interpreter(engine, arguments), arguments.launcher))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"failed": str(error)}
    return min(answers, key=lambda answer: _disturbance([answer])) | {"num_tries": len(answers)}


def _disturbance(answers: list[dict[str, Any]]) -> float:
    """Cores that others kept busy during the worst task of the last answer; infinite where there is none."""
    if not answers:
        return math.inf
    tasks = [part for part in answers[-1].values() if isinstance(part, dict) and "others_busy_cores" in part]
    return max(float(task["others_busy_cores"]) for task in tasks)


def _interpreter(engine: str, arguments: argparse.Namespace) -> str:
    return sys.executable if engine == "whet_engine" else str(arguments.peers_python)


def _run(module: list[str], python: str, launcher: str = "") -> Any:
    """Run a module of serving_peers in a process of its own; what it said after the word "answer"."""
    done = subprocess.run(
        [*shlex.split(launcher), python, "-m", *module],
        cwd=Path(__file__).parent,
        env=os.environ | {"OMP_NUM_THREADS": str(NUM_THREADS), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("answer "):
            return json.loads(line.removeprefix("answer "))
    raise RuntimeError(f"{' '.join(module)} ended with {done.returncode}: {done.stderr[-2000:]}")


def _earlier_rounds(names: list[str], path: Path) -> list[dict[str, Any]]:
    """The rounds of a report of the same machine, versions and engines; none count otherwise."""
    report = json.loads(path.read_text(encoding="utf-8"))
    same = (report["machine"]["id"], report["versions"], list(report["settings"]))
    if same != (describe().fingerprint, versions(), names):
        raise SystemExit(f"{path} is of another machine, other versions or other engines; leave out --resume")
    rounds: list[dict[str, Any]] = report["rounds"]
    return rounds


def _write(names: list[str], rounds: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write what is measured so far, so that a run cut off keeps its finished rounds."""
    report = {
        **circumstances(f"python benchmarks/serve_peers.py --rounds {len(rounds)}"),
        "settings": {n: rounds[-1][n].get("settings", {}) for n in names},
        "figures": figures(names, rounds),
        "claims": judge(rounds),
        "rounds": rounds,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(arguments.out, json.dumps(report, indent=1) + "\n")


def _show(report: dict[str, Any]) -> None:
    headings = list(FIGURES)
    for title, part in (("speed, medians over the rounds", headings[:5]), ("cost", headings[5:])):
        table = Table(title=title, title_justify="left")
        for heading in ("", *part):
            table.add_column(heading, justify="right" if heading else "left")
        for name, row in report["figures"].items():
            table.add_row(name, *(_cell(row.get(heading)) for heading in part))
        Console().print(table)
    claims = Table(title="what was asked for", title_justify="left")
    for heading in ("", "whet", "the best peer", "ratio (95%)", "goal"):
        claims.add_column(heading)
    for claim in report["claims"]:
        low, high = claim["ci95"]
        ratio = f"{claim['ratio']:.2f} ({low:.2f}-{high:.2f})"
        claims.add_row(claim["what"], _cell(claim["ours"]), claim["against"], ratio, claim["wanted"])
    Console().print(claims)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
