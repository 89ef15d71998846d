"""The groups of `benchmarks/gpu.py` and their steps: each group fits into three minutes on a GPU."""

from dataclasses import dataclass, field
from typing import Any

GROUPS = ("tests", "measure", "gate", "tune", "tune-text", "train", "kernels", "stream")


@dataclass(frozen=True)
class Step:
    """One part of the check. function: as module:name. limit_s: at most; least_s: with less left it is not begun."""

    name: str
    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    limit_s: float = 60.0
    least_s: float = 15.0


def plan(group: str, device: str, *, quick: bool) -> list[Step]:
    """Return the steps of a group: the short ones first, so that none of the long ones keeps them from their turn."""
    size = "small_transformer" if quick else "transformer"
    bf16 = f"benchmarks/gpu_targets.py:{size}?device={device}"
    target = bf16 if quick else f"digits-cnn?device={device}"
    loop = {"device": device, "width": 64 if quick else 512, "num_steps": 12 if quick else 60}
    # A process takes 8 to 13 s to start on a GPU: with less than 70 s nothing can be proved.
    budget_s = 30.0 if quick else 75.0
    match group:
        case "tests":
            selection = ["tests/gpu"] if quick else ["tests"]  # whet-audit has none for a GPU
            return [Step("tests", "gpu_steps:run_tests", {"selection": selection}, 175, 30)]
        case "measure":
            batches = {"batches": [1] if quick else [1, 8, 64], "budget_s": 0.5}
            return [
                Step("limits", "gpu_steps:measure_limits", {"device": device}, 45, 15),
                Step("profile", "gpu_steps:profile", {"target": bf16, "device": device}, 60, 20),
                Step("watch", "gpu_steps:watch", loop, 40, 10),
                Step("monitor", "gpu_steps:monitor", loop, 40, 10),
                Step("bench", "gpu_steps:bench", {"target": target, **batches}, 75, 20),
            ]
        case "gate":
            return [
                Step("gate against HEAD", "gpu_steps:gate_against", _gate(target, reference="HEAD"), 75, 30),
                Step("gate", "gpu_steps:gate", _gate(target, processes=2 if quick else 4), 105, 20),
            ]
        case "tune" | "tune-text":
            names = ("digits-cnn",) if group == "tune" else ("docs-encoder", "docs-gpt")
            tuned = [] if quick else [(name, f"{name}?device={device}") for name in names]
            tuned += [("bf16-transformer", bf16)] if group == "tune" else []
            return [
                Step(f"tune {name}", "gpu_steps:tune", {"target": t, "budget_s": budget_s}, 90, 30) for name, t in tuned
            ] or [
                Step("tune docs-gpt", "gpu_steps:tune", {"target": f"docs-gpt?device={device}", "budget_s": 30.0}, 90)
            ]
        case "train":
            return [Step("training steps", "gpu_steps:train_steps", {"device": device, "is_small": quick}, 175, 60)]
        case "kernels":
            return [Step("kernels", "gpu_kernels:kernels", {"device": device, "is_small": quick}, 150, 40)]
        case "stream":
            return [
                Step("signs-stream", "gpu_steps:stream", {"device": device, "num_frames": 20 if quick else 300}, 150)
            ]
    raise ValueError(f"there is no group {group!r}; there are {', '.join(GROUPS)}")


def _gate(target: str, **options: Any) -> dict[str, Any]:
    return {"target": target, "budget_s": 0.3, **options}
