"""Constants, nested containers and masks of -inf, through every runtime and back from disk."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet.core.artefact import load
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import InputsError
from whet.techniques import TABLE
from whet.techniques.technique import Candidate
from whet.tuner.agreement import agree

pytestmark = pytest.mark.thorough

RECIPES: dict[str, tuple[str, dict[str, Any]] | None] = {
    "program": None,
    "compile": ("inductor", {"engine": "jit"}),
    "inductor": ("inductor", {"engine": "package"}),
    "openvino": ("openvino", {"precision": "f32"}),
    "openvino int8": ("openvino", {"precision": "int8"}),
    "onnxruntime": ("onnxruntime", {"precision": "f32"}),
    "onnxruntime int8": ("onnxruntime", {"precision": "int8", "mode": "static"}),
    "native": ("native", {"precision": "f32"}),
    "native int8": ("native", {"precision": "int8"}),
    "int8_static": ("int8_static", {"rest": "float32"}),
    "int8_dynamic": ("int8_dynamic", {"rest": "float32"}),
    "bf16": ("bf16", {}),
}
EXTRAS = {"openvino": "openvino", "onnxruntime": "onnxruntime"}
ROUNDED = ("openvino int8", "onnxruntime int8", "native int8", "int8_static", "int8_dynamic", "bf16")


@dataclass
class Options:
    shift: Tensor
    scale: float


class Nested(nn.Module):
    """Takes a dict, a list and a dataclass with constants among the tensors, and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(
        self, x: Tensor, features: dict[str, Any], *, options: Options, flags: Any, mode: str, gain: Any = None
    ) -> dict[str, Any]:
        assert isinstance(options, Options) and isinstance(flags, list) and gain is None
        y = self.linear(x + features["left"] * features["weight"] + features["inner"][0])
        if flags[0] and mode == "relu":
            y = y.relu()
        return {"logits": self.head(y * options.scale + options.shift), "mode": mode, "all": [y, (x,)]}


def nested_batch(mode: str = "relu", num_rows: int = 4) -> dict[str, Any]:
    left, right, x = torch.randn(3, num_rows, 8)
    return {
        "x": x,
        "features": {"left": left, "weight": 2, "inner": (right,)},
        "options": Options(torch.ones(8), 0.5),
        "flags": [True, None],
        "mode": mode,
        "gain": None,
    }


class Masked(nn.Module):
    """Attention with an additive mask, which is among its outputs too."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / 4 + mask
        return self.out(scores.softmax(-1) @ v), scores


def masked_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 6, 16), torch.full((2, 6, 6), -torch.inf).triu(1)


def built(examined: ExaminedWorkload, recipe: str, directory: Path) -> Any:
    chosen = RECIPES[recipe]
    candidate = Candidate.original(examined)
    if chosen is not None:
        name, options = chosen
        pytest.importorskip(EXTRAS.get(name, "torchao" if "int8_" in name else "torch"))
        candidate = TABLE[name].apply(candidate, TABLE[name].options(**options))
    return load(candidate.save(directory))


@pytest.mark.parametrize("recipe", RECIPES)
def test_constants_and_containers_through_every_runtime(recipe: str, tmp_path: Path) -> None:
    model = Nested().eval()
    batches = [nested_batch() for _ in range(3)]
    artefact = built(examine(Workload(model=model, inputs=batches)), recipe, tmp_path)
    wanted, found = model(**batches[1]), artefact(**batches[1])
    tolerance = 0.2 if recipe in ROUNDED else 1e-4
    torch.testing.assert_close(found.logits, wanted["logits"].detach(), rtol=tolerance, atol=tolerance)
    assert found.mode == "relu" and torch.allclose(found["all"][1][0], batches[1]["x"], atol=0.05)
    short = {name: value for name, value in batches[1].items() if name not in ("flags", "mode", "gain")}
    assert torch.equal(artefact(**short).logits, artefact(**batches[1]).logits)
    changes: list[Callable[[], dict[str, Any]]] = [
        lambda: {"mode": "none"},
        lambda: {"gain": 1.0},
        lambda: {"x": None},
        lambda: {"flags": [1, None]},
        lambda: {"features": {**batches[1]["features"], "weight": 2.0}},
        lambda: {"options": Options(torch.ones(8), 0.25)},
    ]
    for change in changes:
        with pytest.raises(InputsError, match=r"this model takes .* but was called with"):
            artefact(**{**batches[1], **change()})


@pytest.mark.parametrize("recipe", RECIPES)
def test_masks_of_minus_infinity_through_every_runtime(recipe: str, tmp_path: Path) -> None:
    examined = examine(Workload(model=Masked().eval(), inputs=[masked_batch() for _ in range(3)]))
    assert examined.outputs[0][1].isinf().any()
    found = agree(examined, built(examined, recipe, tmp_path).run)
    assert found.distance is not None, "infinities are not where the original's are"
    assert found.distance < (0.01 if recipe in ROUNDED else 1e-8)
