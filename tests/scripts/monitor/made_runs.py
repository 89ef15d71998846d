"""Runs made for tests, without a process to watch."""

from whet.scripts.monitor.run import Facts, Run
from whet.scripts.monitor.series import Cell, Row
from whet.scripts.monitor.steps import StepTotals

FACTS = Facts(
    name="made <run>",
    command="python train.py",
    pid=7,
    host="here",
    interval_s=0.2,
    num_cores=4,
    memory_bytes=8 << 30,
)


def make_run(name: str = FACTS.name) -> Run:
    return Run(Facts(**(vars(FACTS) | {"name": name})))


def feed(run: Run, steps_ms: float = 20.0, num_steps: int = 5, gpu: bool = False) -> None:
    """Add one row: some steps, CPU and memory; a GPU where asked for."""
    steps = StepTotals()
    for _ in range(num_steps):
        phases_s = {"data_wait": steps_ms * 0.4e-3, "forward": steps_ms * 0.2e-3, "backward": steps_ms * 0.3e-3}
        steps.add(steps_ms / 1e3, phases_s, 32, 4096)
    cells = steps.cells() | {"cpu": Cell.of(55.0), "rss_bytes": Cell.of(3 << 30)}
    cells |= {"machine_cpu": Cell.of(70.0), "machine_memory_bytes": Cell.of(5 << 30)}
    if gpu:
        cells |= {"gpu_utilisation:0": Cell.of(83.0), "gpu_memory_bytes:0": Cell.of(6 << 30)}
        cells |= {"cuda_reserved_bytes:0": Cell.of(5 << 30), "cuda_allocated_bytes:0": Cell.of(4 << 30)}
        cells |= {"cuda_fragmentation:0": Cell.of(3.5)}
    unavailable = {} if gpu else {"GPU": "no driver"}
    began_s = run.num_rows * 1.0
    run.add(Row(began_s, began_s + 1, cells), steps, unavailable)
