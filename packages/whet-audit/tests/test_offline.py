"""Files that people run once in a while are told by where they lie inside what is audited."""

import pytest

from whet_audit.collect import SourceFile
from whet_audit.engine import inspect_files

LOOP = """
import torch

def train(model, loader, opt):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        opt.step()
        print(loss.item())
"""


@pytest.mark.parametrize(
    ("path", "is_offline"),
    [
        ("train.py", False),
        ("benchmarks/train.py", True),
        ("tools/conversion/train.py", True),
        ("update_hub_code.py", True),
        ("compare_optimizers.py", True),
        ("convert.py", True),
        ("attention_benchmark.py", True),
        ("update.py", False),
        ("model/quantizer.py", False),
        ("scripts/train.py", False),
    ],
)
def test_by_the_place(path: str, is_offline: bool) -> None:
    found = inspect_files([SourceFile(path, LOOP), SourceFile("other.py", "x = 1\n")])
    assert {one.is_offline for one in found.findings} == {is_offline}
