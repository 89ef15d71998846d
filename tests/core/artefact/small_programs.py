"""Programs for the tests, and archives with something changed in them."""

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.artefact.program import FILE
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.techniques.technique import Candidate


class Small(nn.Module):
    """Parameters, a buffer that is a view of a larger one, a constant, and two outputs by name."""

    view: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("view", torch.arange(10.0)[2:5])

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.linear(x.tanh()) + self.view * torch.tensor(2.0)
        return {"logits": y, "rest": (y.argmax(-1), "text")}


def small() -> ExaminedWorkload:
    torch.manual_seed(0)
    return examine(Workload(model=Small(), inputs=[torch.randn(2, 4), torch.randn(5, 4)]))


def save(examined: ExaminedWorkload, directory: Path) -> Path:
    return Candidate.original(examined).save(directory)


def rewrite(
    directory: Path,
    *,
    edit: Mapping[str, Callable[[Any], Any]] | None = None,
    replace: Mapping[str, bytes] | None = None,
    add: Mapping[str, bytes] | None = None,
    add_at_the_top: Mapping[str, bytes] | None = None,
) -> Path:
    """Change the program's archive in place. edit: of JSON records; the others: of raw ones. Returns its path."""
    path = directory / FILE
    with zipfile.ZipFile(path) as archive:
        records = [(name.partition("/"), archive.read(name)) for name in archive.namelist()]
    root = records[0][0][0]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for (_, _, name), content in records:
            if edit and name in edit:
                data = json.loads(content)
                content = json.dumps(edit[name](data) or data).encode()
            archive.writestr(f"{root}/{name}", (replace or {}).get(name, content))
        for name, content in (add or {}).items():
            archive.writestr(f"{root}/{name}", content)
        for name, content in (add_at_the_top or {}).items():
            archive.writestr(name, content)
    return path
