"""Code in which an edit would be wrong: no fix is offered there, though the finding stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from offers import NONE, fixed, found, offered

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
    "a wait under a comment on its condition": ("SYN111", """
        import torch
        def train(model, loader, optimizer, device, extension):
            for x in loader:
                model(x.to(device)).mean().backward()
                optimizer.step()
                # the extension reads the gradients on a stream of its own

                if extension is not None:
                    torch.cuda.synchronize()
        """),
    "a wait with its reason below": ("SYN111", """
        import torch
        def train(model, loader, optimizer, device):
            for x in loader:
                model(x.to(device)).mean().backward()
                optimizer.step()
                torch.cuda.synchronize()
                # else the driver of our card hangs
        """),
    "one kernel per parameter, by an option": ("CMP107", """
        import argparse, torch
        parser = argparse.ArgumentParser()
        parser.add_argument("--foreach", action="store_true")
        args = parser.parse_args()
        def clip(model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=args.foreach)
        """),
    "one kernel per parameter, for a reason": ("CMP107", """
        import torch
        def clip(model):
            # a list of all gradients does not fit
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        """),
    "gradients that are zeros for a reason": ("MEM101", """
        import torch
        def train(model, loader, optimizer):
            for x in loader:
                model(x).mean().backward()
                optimizer.step()
                # weight decay has to reach parameters without gradients
                optimizer.zero_grad(set_to_none=False)
        """),
    "kernels by rule, for a reason": ("CMP112", """
        import torch
        # every batch has another shape
        torch.backends.cudnn.benchmark = False
        """),
    "no workers, for a reason": ("DAT102", """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Photos(Dataset):
            def __len__(self):
                return 9
            def __getitem__(self, i):
                return torch.load(f"{i}.pt")
        def train(model, optimizer):
            loader = DataLoader(Photos(), batch_size=8, num_workers=0)  # the file server takes one reader
            for x in loader:
                model(x).mean().backward()
                optimizer.step()
        if __name__ == "__main__":
            train(make_model(), make_optimizer())
        """),
    "a loss by the name of a prediction": ("MEM102", """
        import torch
        def predict_ahead(model, x, steps: int):
            model.eval()
            total = torch.zeros(())
            with torch.autocast("cpu"):
                for _ in range(steps):
                    x = model(x)
                    total += torch.relu(x).mean()
            return total
        """),
    "predictions kept in an attribute": ("MEM102", """
        import torch
        class Rollout:
            def predict(self, model, loader):
                for x in loader:
                    self.total += torch.relu(model(x)).mean()
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
