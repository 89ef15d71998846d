"""A script that trains, and a bounded run of one."""

import sys
from collections.abc import Sequence
from pathlib import Path

from whet.scripts.injection.command import ScriptCommand, ScriptOutcome, run_bounded
from whet.scripts.injection.messages import ScriptRequest

TRAIN = """
import sys
import torch

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    open("log.txt", "a").write(f"{step}\\n")
torch.save(model.state_dict(), "model.pt")
"""


def run(
    place: Path, source: str, arguments: Sequence[str] = (), *, most_written: int = 2**30, **asked: object
) -> ScriptOutcome:
    (place / "train.py").write_text(source)
    command = ScriptCommand.checked([sys.executable, "train.py", *arguments])
    request = ScriptRequest.model_validate({"num_steps": 8, **asked})
    return run_bounded(command, request, place.parent / "scratch", limit_s=60, most_written=most_written)
