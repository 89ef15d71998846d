"""Which fixes are called safe, which as unsafe, and which are not offered: code in which an edit is wrong."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from whet.auditor.collect import SourceFile
from whet.auditor.engine import audit
from whet.auditor.finding import Finding
from whet.auditor.fixing import apply_fixes
from whet.auditor.requirements import oldest_torch

SAFE, UNSAFE, NONE = "safe", "unsafe", "none"


def found(folder: Path, source: str, code: str, requirement: str = "") -> list[Finding]:
    """The findings of a code in `train.py`, in a project with a requirement of torch."""
    folder.mkdir(exist_ok=True)
    (folder / ".git").mkdir(exist_ok=True)
    if requirement:
        (folder / "requirements.txt").write_text(f"numpy\n{requirement}\n", encoding="utf-8")
    result = audit([SourceFile(str(folder / "train.py"), textwrap.dedent(source))])
    assert not result.problems
    return [finding for finding in result.findings if finding.code == code]


def offered(findings: list[Finding]) -> list[str]:
    """What fix each finding comes with."""
    return [NONE if f.fix is None else SAFE if f.fix.is_safe else UNSAFE for f in findings]


def fixed(folder: Path, source: str, code: str) -> str:
    """The source after the fixes of a code."""
    text = textwrap.dedent(source)
    return apply_fixes(text, [f.fix for f in found(folder, source, code) if f.fix is not None]).source


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


REFUSED = {
    "a sum that an array takes": ("SYN101", """
        import numpy as np, torch
        def train(model, loader, optimizer, device):
            total = np.zeros(1)
            for x in loader:
                loss = model(x.to(device)).mean()
                loss.backward()
                optimizer.step()
                total += loss.item()
        """),
    "a sum that the loop compares": ("SYN101", """
        import json, torch
        def train(model, loader, optimizer, device, file):
            total = 0.0
            for x in loader:
                loss = model(x.to(device)).mean()
                loss.backward()
                optimizer.step()
                total += loss.item()
                json.dump({"loss": total}, file)
        """),
    "a memory freed for a reason": ("SYN112", """
        import torch
        def train(model, loader, optimizer, device):
            for x in loader:
                model(x.to(device)).mean().backward()
                optimizer.step()
                torch.cuda.empty_cache()  # needed: long batches fragment the memory
        """),
    "a memory freed for a reason above": ("SYN112", """
        import torch
        def train(model, loader, optimizer, device):
            for x in loader:
                model(x.to(device)).mean().backward()
                optimizer.step()
                # without this we run out of memory
                torch.cuda.empty_cache()
        """),
    "memory freed after something is deleted": ("SYN112", """
        import gc, torch
        def train(model, loader, optimizer, device):
            for x in loader:
                out = model(x.to(device))
                out.mean().backward()
                optimizer.step()
                del out
                gc.collect()
        """),
    "a measurement": ("SYN111", """
        import time, torch
        def train(model, loader, optimizer, device):
            for x in loader:
                start = time.perf_counter()
                model(x.to(device)).mean().backward()
                optimizer.step()
                torch.cuda.synchronize()
                print(time.perf_counter() - start)
        """),
    "a copy to the CPU that is waited for": ("SYN111", """
        import torch
        def train(model, loader, optimizer, device, host):
            for x in loader:
                loss = model(x.to(device)).mean()
                loss.backward()
                optimizer.step()
                host.copy_(loss, non_blocking=True)
                torch.cuda.synchronize()
                host.tolist()
        """),
    "gradients that are added to": ("MEM101", """
        import torch
        def train(model, loader, optimizer, noise):
            for x in loader:
                optimizer.zero_grad(set_to_none=False)
                for p in model.parameters():
                    p.grad += noise
                model(x).mean().backward()
                optimizer.step()
        """),
    "a loss that is scaled by tokens": ("MEM104", """
        import torch
        def train(model, loader, optimizer, accumulate):
            num_tokens = 0
            for step, x in enumerate(loader):
                num_tokens += x.numel()
                loss = model(x).sum()
                loss.backward()
                if step % accumulate == 0:
                    for p in model.parameters():
                        p.grad /= num_tokens
                    optimizer.step()
                    optimizer.zero_grad()
        """),
    "a graph that a second loss shares": ("MEM107", """
        import torch
        def train(model, loader, first, second):
            for x in loader:
                hidden = model(x)
                alpha = hidden.mean()
                alpha.backward(retain_graph=True)
                first.step()
                second.update(hidden.sum())
        """),
    "answers that may be trained on": ("INF101", """
        import torch
        def predict(model, loader, device):
            model.eval()
            out = []
            for x, _ in loader:
                out.append(model(x.to(device)))
            return out

        def train(model, teacher, loader, optimizer):
            for x in predict(teacher, loader, "cuda"):
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
        """),
    "inference in a program that trains": ("INF102", """
        import torch
        def sample(model, loader):
            model.eval()
            with torch.no_grad():
                batches = [model(x) for x, _ in loader]
            return batches

        def train(model, teacher, loader, optimizer):
            for x in sample(teacher, loader):
                loss = model(x).mean()
                loss.backward()
                optimizer.step()

        if __name__ == "__main__":
            train(*torch.load("all.pt"))
        """),
    "unused parameters": ("DST102", """
        import torch
        from torch.nn.parallel import DistributedDataParallel
        def wrap(model):
            # the second head gets no gradient in most steps
            return DistributedDataParallel(model, find_unused_parameters=True)
        """),
    "biases that are set": ("CMP113", """
        from torch import nn
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        for layer in net:
            layer.bias.data.zero_()
        """),
    "sparse gradients": ("CMP106", """
        import torch
        def train(loader, device):
            table = torch.nn.Embedding(8, 8, sparse=True).to(device)
            optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
            for x in loader:
                table(x).sum().backward()
                optimizer.step()
        """),
    "gradients of gradients": ("CMP101", """
        import torch
        from torch import nn
        def main(loader, device):
            net = nn.Linear(8, 8).to(device)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x in loader:
                loss = net(x).sum()
                torch.autograd.grad(loss, net.weight, create_graph=True)
                loss.backward()
                optimizer.step()
        if __name__ == "__main__":
            main(torch.load("data.pt"), "cuda")
        """),
    "numpy after autocast": ("PRE101", """
        import torch
        def train(model, loader, optimizer, criterion, device):
            for x, y in loader:
                out = model(x.to(device))
                loss = criterion(out, y.to(device))
                loss.backward()
                optimizer.step()
                print(out.detach().cpu().numpy())
        """),
    "a clamp whose result is no tensor's operand": ("SYN107", """
        import torch
        def train(model, loader, optimizer, device):
            for x, y in loader:
                mask = (y != -100).to(device)
                model(x.to(device), max(1, mask.sum())).mean().backward()
                optimizer.step()
        """),
    "a dataset whose samples lie on the GPU": ("MOV102", """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Texts(Dataset):
            def __init__(self, text):
                self.text = text
            def __len__(self):
                return len(self.text)
            def __getitem__(self, index):
                return self.text[index].cuda()
        def loaders(text):
            return DataLoader(Texts(text), batch_size=8)
        """),
}  # fmt: skip


@pytest.mark.parametrize(("code", "source"), REFUSED.values(), ids=list(REFUSED))
def test_no_fix_is_offered_that_would_be_wrong(tmp_path: Path, code: str, source: str) -> None:
    assert set(offered(found(tmp_path, source, code))) == {NONE}


DATASETS = {
    "an iterable one": "class Data(IterableDataset):\n    def __iter__(self):\n        return iter(range(9))",
    "a queue": (
        "class Data(Dataset):\n    def __init__(self):\n        self.queue = queue.Queue()\n"
        "    def __len__(self):\n        return 9\n    def __getitem__(self, index):\n        return self.queue.get()"
    ),
    "one that changes": (
        "class Data(Dataset):\n    def __init__(self):\n        self.items = []\n"
        "    def __len__(self):\n        return 9\n"
        "    def push(self, item):\n        self.items[0] = item\n"
        "    def __getitem__(self, index):\n        return torch.load(self.items[index])"
    ),
}


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=list(DATASETS))
def test_workers_are_not_given_to_what_lives_in_one_process(tmp_path: Path, dataset: str) -> None:
    source = f"""
import queue
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

{dataset}

def train(model, optimizer):
    loader = DataLoader(Data(), batch_size=8)
    for epoch in range(3):
        for x in loader:
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
"""
    assert set(offered(found(tmp_path, source, "DAT102"))) == {NONE}


def test_eval_mode_ends_with_the_loop(tmp_path: Path) -> None:
    source = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))

        def forward(self, x):
            return self.layers(x)

    def evaluate(loader):
        net = Net()
        hits = 0
        with torch.no_grad():
            for x, y in loader:
                hits += (net(x).argmax(1) == y).sum()
        return hits
    """
    text = fixed(tmp_path, source, "INF105")
    assert "net.train()" in text.split("net.eval()")[1]


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
