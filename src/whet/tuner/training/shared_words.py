"""Say what was found out about a training that several processes share, and write its plan as a file."""

import tomli_w

from whet.measure.cores import allowed_cores
from whet.tuner import figures
from whet.tuner.result import MeasuredVariant, Result

PLAN = "parallel.toml"


def num_threads(number: int) -> int:
    """Return how many threads each of several processes on this machine computes with."""
    return max(1, len(allowed_cores()) // number)


def plan_file(result: Result) -> str:
    """Return the plan of a result as a TOML file, with how it is started."""
    number = result.num_processes
    lines = [f"Found by whet tune --nproc {number} for {result.target}"]
    if result.plan is None:
        lines.append(f"One process with all cores is faster than {number}: start it without torchrun.")
        return "".join(f"# {line}\n" for line in lines)
    lines.append(f"Start it with OMP_NUM_THREADS={num_threads(number)} torchrun --standalone --nproc-per-node {number}")
    return "".join(f"# {line}\n" for line in lines) + "\n" + tomli_w.dumps({"parallel": result.plan})


def plan_sentences(result: Result) -> list[str]:
    """Return what is known of the plan, and of one process with all cores beside it; nothing without several."""
    if result.num_processes == 1:
        return []
    number, keys = f"{result.num_processes} processes", result.plan or {}
    told = ", ".join(f"{name} = {str(value).lower()}" for name, value in keys.items())
    plan = f"The plan for {number}: {told}." if result.plan is not None else f"The plan: one process, not {number}."
    return [plan, *([] if result.one_process is None else [_beside(result.one_process, number)]), *result.hints]


def _beside(alone: MeasuredVariant, number: str) -> str:
    ratio = figures.ratio(alone.speedup)
    how = "" if alone.verdict != "screened" else ", in the screening"
    return f"One process with all cores is {ratio} as fast as {number} with DDP{how}."
