"""List the metrics: the key of each in a row, its unit, and the charts that show it.

A metric of each GPU has the GPU's number after a colon: "gpu_utilisation:0". The phases of a step have their name
there: "share:forward". Cells hold milliseconds, per-second rates, percent and bytes.
"""

from dataclasses import asdict, dataclass

STEP = "step_ms"
STEPS = "steps_per_s"
SAMPLES = "samples_per_s"
TOKENS = "tokens_per_s"
SHARE = "share"
CPU = "cpu"
MACHINE_CPU = "machine_cpu"
RSS = "rss_bytes"
MACHINE_MEMORY = "machine_memory_bytes"
GPU = "gpu_utilisation"
GPU_MEMORY = "gpu_memory_bytes"
CUDA_ALLOCATED = "cuda_allocated_bytes"
CUDA_RESERVED = "cuda_reserved_bytes"
CUDA_FRAGMENTATION = "cuda_fragmentation"

DATA_WAIT = "data_wait"
COMMUNICATION = "communication"
REST = "rest"

# The label of each phase, in the order of a step.
PHASES = {
    DATA_WAIT: "data wait",
    "host_to_device": "host to device",
    "forward": "forward",
    "backward": "backward",
    "optimiser": "optimiser",
    "synchronisation": "synchronisation",
    COMMUNICATION: "communication",
    REST: "everything else",
}


@dataclass(frozen=True)
class Line:
    """Describe the lines of a key in a chart: its own, and one for each "key:NUMBER" or "key:NAME" that occurs."""

    key: str
    label: str


@dataclass(frozen=True)
class Chart:
    """Describe one chart of the page.

    Attributes:
        unit: "ms", "/s", "%" or "B".
        explanation: A text below the title.
        top: The end of the axis, if it is known beforehand.
    """

    title: str
    unit: str
    lines: tuple[Line, ...]
    explanation: str = ""
    top: float | None = None
    stacked: bool = False


CHARTS = (
    Chart("Step latency", "ms", (Line(STEP, "mean"),), "Mean of each interval; the band reaches from the shortest "
          "step to the longest."),
    Chart("Where the step's time goes", "%", tuple(Line(f"{SHARE}:{name}", text) for name, text in PHASES.items()),
          "Share of the step's time.", top=100, stacked=True),
    Chart("Samples per second", "/s", (Line(SAMPLES, "samples"),)),
    Chart("Tokens per second", "/s", (Line(TOKENS, "tokens"),)),
    Chart("Steps per second", "/s", (Line(STEPS, "steps"),)),
    Chart("CPU", "%", (Line(CPU, "this run"), Line(MACHINE_CPU, "whole machine")),
          "100% is every core: of those this run may use, and of the machine.", top=100),
    Chart("Memory", "B", (Line(RSS, "this run"), Line(MACHINE_MEMORY, "whole machine")),
          "Resident memory of the process and all it started; a page that several of them share counts in each."),
    Chart("GPU", "%", (Line(GPU, "GPU"),), "Share of the time in which a kernel ran.", top=100),
    Chart("GPU memory", "B", (Line(GPU_MEMORY, "in use, GPU"), Line(CUDA_RESERVED, "reserved by PyTorch, GPU"),
                              Line(CUDA_ALLOCATED, "held by tensors, GPU"))),
    Chart("CUDA fragmentation", "%", (Line(CUDA_FRAGMENTATION, "GPU"),),
          "Share of the memory reserved by PyTorch that lies free in pieces of split blocks and cannot be given back.",
          top=100),
)  # fmt: skip


def charts() -> list[dict[str, object]]:
    """Return the charts as a list of dicts, which the page reads as JSON."""
    return [asdict(chart) for chart in CHARTS]
