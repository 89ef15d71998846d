"""Which fixes are called safe, and which are offered as unsafe; those of copies, names and precision."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from offers import NONE, SAFE, UNSAFE, fixed, found, offered
from whet_audit.fixing import apply_fixes
from whet_audit.requirements import oldest_torch

LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
{imports}

def train(model, optimizer{parameters}):
    {before}
    for {batch} in loader:
        loss = model({moved}).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
IN_MEMORY = "loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.zeros(64)), batch_size=8{options})"


def loop(moved: str, *, before: str = "", batch: str = "x, y", parameters: str = "", imports: str = "",
         options: str = "") -> str:  # fmt: skip
    """A training loop that moves something of its batch."""
    before = (before or IN_MEMORY.format(options=options)).replace("\n", "\n    ")
    return LOOP.format(moved=moved, before=before, batch=batch, parameters=parameters, imports=imports)


COPIES = {
    "tensors to CUDA": (loop("x.cuda()"), SAFE),
    "to a device named CUDA": (loop('x.to("cuda:0")'), SAFE),
    "to CUDA where there is one": (
        loop(
            "x.to(device)",
            before='device = "cuda" if torch.cuda.is_available() else "cpu"\n' + IN_MEMORY.format(options=""),
        ),
        SAFE,
    ),
    "to a device that only callers know": (loop("x.to(device)", parameters=", device"), UNSAFE),
    "to MPS where there is no CUDA": (
        loop(
            "x.to(device)",
            before='device = "cuda" if torch.cuda.is_available() else "mps"\n' + IN_MEMORY.format(options=""),
        ),
        NONE,
    ),
    "to a given device in a file that names MPS": (
        loop("x.to(device)", parameters=', device="mps"'),
        NONE,
    ),
    "batches of an own collate function": (loop("x.cuda()", options=", collate_fn=pad"), UNSAFE),
    "a dataset of which nothing is known": (
        loop("x.cuda()", before="loader = DataLoader(data, batch_size=8)", parameters=", data"),
        UNSAFE,
    ),
    "a whole batch, of any class": (
        loop("batch.to(device)", batch="batch", parameters=", loader, device", before="pass"),
        NONE,
    ),
    "a part that is written in place meanwhile": (
        loop("x.cuda()", batch="x, y", before=IN_MEMORY.format(options="") + "\nfor x, y in loader:\n    x.fill_(0)"),
        NONE,
    ),
    "a mask of blocks": (
        loop(
            "x, attention_mask.to(device)",
            imports="from torch.nn.attention.flex_attention import create_block_mask",
            before=IN_MEMORY.format(options="") + "\nattention_mask = create_block_mask(f, 1, 1, 8, 8)",
            parameters=", device, f",
        ),
        NONE,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), COPIES.values(), ids=list(COPIES))
def test_copies_are_queued_only_where_that_is_right(tmp_path: Path, source: str, expected: str) -> None:
    findings = found(tmp_path, source, "MOV101")
    assert offered(findings)[:1] == [expected]
    text = apply_fixes(source, [f.fix for f in findings if f.fix is not None]).source
    assert text.count("non_blocking=True") == (expected != NONE)


def test_a_helper_that_may_move_to_the_cpu_is_left_alone(tmp_path: Path) -> None:
    source = """
    import torch

    class Pair:
        def to(self, device):
            return self

    def to_device(batch, device):
        return {name: part.to(device) for name, part in batch.items()}

    def train(model, loader, optimizer, device):
        for batch in loader:
            loss = model(**to_device(batch, device)).loss
            loss.backward()
            optimizer.step()
            results = to_device({"loss": loss, "pair": Pair()}, "cpu")
    """
    findings = found(tmp_path, source, "MOV101")
    assert set(offered(findings)) == {NONE}


AMP = """
import torch
scaler = torch.cuda.amp.GradScaler()
with torch.cuda.amp.autocast():
    pass
"""


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("torch>=2.3", [SAFE, SAFE]),
        ("torch==2.4.1", [SAFE, SAFE]),
        ("torch>=1.12,<3", [NONE, SAFE]),
        ("torch>=1.8", [NONE, NONE]),
        ("torch", [UNSAFE, UNSAFE]),
        ("", [UNSAFE, UNSAFE]),
    ],
)
def test_names_that_the_projects_torch_lacks_are_not_used(
    tmp_path: Path, requirement: str, expected: list[str]
) -> None:
    assert offered(found(tmp_path, AMP, "PRE102", requirement)) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["numpy", "torch>=2.1,<3"]\n', (2, 1)),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^2.2"\n', (2, 2)),
        ("pyproject.toml", '[build-system]\nrequires = ["torch>=2.9"]\n', None),
        ("setup.py", 'setup(install_requires=["torch >= 1.11", "torchvision>=0.2"])\n', (1, 11)),
        ("setup.cfg", "[options]\ninstall_requires =\n    torch>=2.0; python_version > '3.8'\n", (2, 0)),
        ("requirements.txt", "torchvision>=0.15\ntorch==1.13.1\n", (1, 13)),
        ("environment.yaml", "dependencies:\n  - pytorch=1.11.0\n", (1, 11)),
        ("requirements.txt", "torchmetrics>=1.0\n", None),
    ],
)
def test_the_oldest_torch_is_read_from_requirements(
    tmp_path: Path, name: str, text: str, expected: tuple[int, int] | None
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert oldest_torch(str(tmp_path / "package" / "module.py")) == expected


def test_a_product_keeps_its_parentheses(tmp_path: Path) -> None:
    source = """
    import torch
    def train(model, loader, optimizer, device):
        total = 0.0
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            total += (loss * len(x) / 8).item()
        return total
    """
    text = fixed(tmp_path, source, "SYN101")
    assert "total += (loss * len(x) / 8).detach()" in text
    assert "total = torch.as_tensor(total).item()" in text.split("detach()")[1]


def test_micro_steps_keep_their_parentheses(tmp_path: Path) -> None:
    source = """
    def train(model, loader, optimizer, accumulate, gpus):
        for step, x in enumerate(loader):
            loss = model(x).mean()
            loss.backward()
            if step % (accumulate + gpus) == 0:
                optimizer.step()
                optimizer.zero_grad()
    """
    assert "(loss / (accumulate + gpus)).backward()" in fixed(
        tmp_path, "import torch\n" + textwrap.dedent(source), "MEM104"
    )


def test_pinning_is_safe_only_of_tensors_that_surely_go_to_cuda(tmp_path: Path) -> None:
    assert offered(found(tmp_path / "sure", loop("x.cuda()"), "MOV102")) == [SAFE]
    unsure = loop("x.cuda()", before="loader = DataLoader(data, batch_size=8)", parameters=", data")
    assert offered(found(tmp_path / "unsure", unsure, "MOV102")) == [UNSAFE]


def test_a_running_list_is_detached_safely_only_of_what_was_differentiated(tmp_path: Path) -> None:
    source = """
    import torch
    def train(model, loader, optimizer):
        losses, outputs = [], []
        for x in loader:
            out = model(x)
            loss = torch.nn.functional.mse_loss(out, x)
            loss.backward()
            optimizer.step()
            losses.append(loss)
            outputs.append(torch.relu(out))
        return losses
    """
    assert offered(found(tmp_path, source, "MEM102")) == [SAFE, UNSAFE]
