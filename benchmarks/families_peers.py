"""State-space models of 130 million parameters in whet's engine, beside llama.cpp and transformers, in one run.

    python benchmarks/families_peers.py --work DIR --peers-python PEERS/bin/python [--rounds 4] [--resume]

llama.cpp has an environment of its own, built from source so that it uses what this processor has:

    python -m venv PEERS
    PEERS/bin/pip install numpy gguf safetensors scikit-build-core
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" PEERS/bin/pip install --no-binary llama-cpp-python llama-cpp-python

Where a processor has AMX, version 0.3.36 so built crashes on these models (SIGSEGV in ggml_backend_amx_mul_mat). There,
name the other instruction sets in the place of GGML_NATIVE=ON: -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON
-DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX_VNNI=ON -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON
-DGGML_AVX512_BF16=ON. The report has llama.cpp's own list of what it uses.

Without it, the other contenders are measured, and the report says that it is absent. transformers runs in whet's own
environment. The models have random weights; they are made under --work, and each engine's tools convert and quantise
them there. Every contender loads its model once, in a process of its own with two threads, and waits. In a round each
takes a turn at each task, with prompts never seen before; every second round goes through the contenders backwards, so
that two rounds are A B C C B A. What memory can read is measured at the start of each round.

The costs of a long-term-memory decoder's memory follow (ltm_costs.py), if --ltm is not 0.

The limit of a token is the time to read all matrices, and to read and write the sequence's state. A ratio is the
geometric mean over the rounds, with a bootstrap 95 % interval.

Writes docs/results/families_peers.MACHINE.json after every round; `benchmarks/results.py` makes the table. --resume
adds rounds to those that are there. --trial asks for no quiet machine, and writes nothing.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from circumstances import circumstances
from families_tables import TASKS, family_lines, judge
from quietly import quiet_machine
from serving_peers.contender import MODEL, NUM_THREADS
from serving_peers.selective import SHAPES, make_selective

from whet.files import write_whole
from whet.kernels.build import library
from whet.kernels.linear.packed import Kind
from whet.measure.machine import describe, versions
from whet.models.selective.config import read_config
from whet.models.selective.files import read_weights
from whet.models.selective.native import NativeSelective

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CONTENDERS = {  # name -> the file in serving_peers/, and how it holds its weights
    "whet bf16": ("whet_engine", "as-is"),
    "whet int8": ("whet_engine", "int8"),
    "whet int4": ("whet_engine", "int4"),
    "llama.cpp Q8_0": ("llama_cpp", "Q8_0"),
    "transformers bf16": ("transformers_peer", "bfloat16"),
    "transformers float32": ("transformers_peer", "float32"),
}
_KINDS = {"whet bf16": Kind.BF16, "whet int8": Kind.S8, "whet int4": Kind.S4}


def main() -> None:
    arguments = _arguments()
    report = _start_of_report(arguments)
    for model in filter(None, arguments.models.split(",")):
        _measure(model, report, arguments)
    if arguments.ltm:
        import ltm_costs

        with contextlib.nullcontext() if arguments.trial else quiet_machine():
            report["ltm"] = ltm_costs.measure(arguments.ltm)
        _write(report, arguments)
    print("\n".join(family_lines(report)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the models lie, about 3 GB; made if needed")
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter with llama-cpp-python and gguf")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--models", default=",".join(SHAPES), help='comma-separated: %(default)s; "" for none')
    parser.add_argument("--ltm", type=int, default=6, help="rounds of the long-term-memory decoder's costs; 0: none")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="comma-separated: %(default)s")
    parser.add_argument("--resume", action="store_true", help="add rounds to those of this machine and these versions")
    parser.add_argument("--trial", action="store_true", help="try the script on a busy machine; write nothing")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    for given, known in ((arguments.models, SHAPES), (arguments.contenders, CONTENDERS)):
        for name in given.split(","):
            if given and name not in known:
                parser.error(f"there is no {name!r}; there are: {', '.join(known)}")
    return arguments


def _path() -> Path:
    return RESULTS / f"families_peers.{describe().fingerprint}.json"


def _start_of_report(arguments: argparse.Namespace) -> dict[str, Any]:
    report = {**circumstances("python benchmarks/families_peers.py"), "build": library().isa, "models": {}}
    if not arguments.resume or not _path().exists():
        return report
    earlier: dict[str, Any] = json.loads(_path().read_text(encoding="utf-8"))
    if (earlier["machine"]["id"], earlier["versions"]) != (describe().fingerprint, versions()):
        raise SystemExit(f"{_path()} is of another machine or of other versions; leave out --resume")
    return earlier


def _measure(model: str, report: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Add a model's rounds to the report, and write it after each."""
    work = arguments.work / model
    make_selective(model, work / MODEL)
    found = report["models"].setdefault(model, {"bytes": _bytes_of(work / MODEL), "rounds": []})
    with contextlib.ExitStack() as stack:
        waiting = {}
        found["absent"] = {}
        for name in arguments.contenders.split(","):
            try:
                waiting[name] = stack.enter_context(_started(name, work, arguments))
            except RuntimeError as error:
                found["absent"][name] = str(error)
                print(f"{model}: {name} is absent: {error}", file=sys.stderr)
        found["settings"] = {name: contender.about["settings"] for name, contender in waiting.items()}
        found["agreement"] = {name: contender.about["agreement"] for name, contender in waiting.items()}
        for _ in range(arguments.rounds):
            with contextlib.nullcontext() if arguments.trial else quiet_machine():
                found["rounds"].append(_round(waiting, len(found["rounds"])))
            found["claims"] = judge(model, found)
            _write(report, arguments)


def _write(report: dict[str, Any], arguments: argparse.Namespace) -> None:
    if not arguments.trial:
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_whole(_path(), json.dumps(report, indent=1) + "\n")


def _bytes_of(directory: Path) -> dict[str, Any]:
    """Return the bytes that a token reads of weights, by contender, and those of a state."""
    config = read_config(directory)
    weights = read_weights(directory, config)
    models = {name: NativeSelective(config, weights, library(), kind=kind) for name, kind in _KINDS.items()}
    return {
        "weights": {name: model.weight_bytes for name, model in models.items()},
        "state": models["whet int8"].bytes_per_state,
    }


def _round(waiting: "dict[str, _Waiting]", number: int) -> dict[str, Any]:
    answers: dict[str, Any] = {"read_bandwidth": _read_bandwidth()}
    names = list(waiting)[:: -1 if number % 2 else 1]
    for task in TASKS:
        answers[task] = {}
        for name in names:
            if task in ("decode", "prefill") or name.startswith("whet"):
                answers[task][name] = waiting[name].turn(task, number)
    return answers


def _read_bandwidth() -> float:
    command = [sys.executable, "-m", "serving_peers.read_limit"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


class _Waiting:
    """A contender in a process of its own, which waits between its turns."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self._name, self._process = name, process
        self.about = self._answer()
        for task in TASKS:  # a turn that does not count
            if task == "decode" or name.startswith("whet"):
                self.turn(task, -1)

    def turn(self, task: str, seed: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"task": task, "seed": seed}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, float] = self._answer()
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(f"{self._name} ended with {self._process.wait()}")


@contextlib.contextmanager
def _started(name: str, work: Path, arguments: argparse.Namespace) -> Iterator[_Waiting]:
    """Start a contender; it is ended with the block.

    Raises:
        RuntimeError: It is not installed, or cannot load its model.
    """
    engine, kind = CONTENDERS[name]
    python = arguments.peers_python if engine == "llama_cpp" else sys.executable
    needed = [python, "-c", "import llama_cpp, gguf"]
    if engine == "llama_cpp" and subprocess.run(needed, capture_output=True, check=False).returncode:
        raise RuntimeError(f"{python} has no llama_cpp or no gguf; name an interpreter in --peers-python")
    process = subprocess.Popen(
        [python, "-m", "serving_peers.turns", engine, kind, str(work)],
        cwd=Path(__file__).parent,
        env=os.environ | {"OMP_NUM_THREADS": str(NUM_THREADS), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if arguments.contenders.count(",") else None,
        text=True,
    )
    try:
        yield _Waiting(name, process)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
