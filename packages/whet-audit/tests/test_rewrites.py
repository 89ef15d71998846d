"""The larger rewrites compute the same numbers, judged by running both versions in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet_audit.collect import SourceFile
from whet_audit.engine import inspect_files
from whet_audit.fixing import apply_fixes

HEAD = """
import torch
import torch.nn.functional as F
"""
LOOP = """
def k_token_loss(model, prefix, y, num_tokens):
    embed = model.embed
    loss = 0.0
    for t in range(num_tokens):  # one at a time
        # what was written so far
        inputs = torch.cat([prefix, embed(y[:, :t])], dim=1)
        logits = model(inputs)[:, -1]
        loss {update}
    return loss / num_tokens


def train(model, loader, optimizer):
    for prefix, y in loader:
        k_token_loss(model, prefix, y, 5).backward()
        optimizer.step()
"""


class Causal(nn.Module):
    """Each position sees what came before it, by a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, dtype=torch.float64)
        self.out = nn.Linear(6, 11, dtype=torch.float64)

    def forward(self, x_BTD: Tensor) -> Tensor:
        positions = torch.arange(1, x_BTD.shape[1] + 1, dtype=torch.float64)[:, None]
        mixed: Tensor = self.out(torch.tanh(x_BTD.cumsum(dim=1) / positions))
        return mixed


def fixed(source: str, code: str) -> str:
    findings = [finding for finding in inspect_files([SourceFile("train.py", source)]).findings if finding.code == code]
    return apply_fixes(source, [finding.fix for finding in findings if finding.fix is not None]).source


def loss_of(source: str, model: nn.Module, prefix: Tensor, y: Tensor) -> Tensor:
    names: dict[str, Any] = {}
    exec(source, names)
    loss: Tensor = names["k_token_loss"](model, prefix, y, 5)
    return loss


@pytest.mark.parametrize("update", ["+= F.cross_entropy(logits, y[:, t])", "= loss + F.cross_entropy(logits, y[:, t])"])
def test_one_forward_gives_the_loss_of_all_prefixes(update: str) -> None:
    source = HEAD + LOOP.format(update=update)
    after = fixed(source, "CMP105")
    assert after != source
    assert "for t in" not in after
    assert "# what was written so far" in after
    torch.manual_seed(0)
    model, prefix, y = Causal(), torch.randn(3, 4, 6, dtype=torch.float64), torch.randint(0, 11, (3, 7))
    slow, fast = loss_of(source, model, prefix, y), loss_of(after, model, prefix, y)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=0)
    before_grad = torch.autograd.grad(slow, list(model.parameters()))
    after_grad = torch.autograd.grad(fast, list(model.parameters()))
    torch.testing.assert_close(after_grad, before_grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[:, :t]", "y[:, : t + 1]"),  # it sees one token more
        ("[:, -1]", "[:, t]"),
        ("F.cross_entropy(logits, y[:, t])", "F.cross_entropy(logits, y[:, t], ignore_index=0)"),
        ("F.cross_entropy(logits, y[:, t])", "F.cross_entropy(logits, y[:, t]) * 0.9**t"),
        ("range(num_tokens)", "range(1, num_tokens)"),
        ("        loss ", "        print(t)\n        loss "),
    ],
)
def test_other_loops_are_left_alone(old: str, new: str) -> None:
    source = (HEAD + LOOP.format(update="+= F.cross_entropy(logits, y[:, t])")).replace(old, new)
    assert fixed(source, "CMP105") == source


OPTIONS = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=1)
parser.add_argument("--{accumulation}", type=int, default={times})
args = parser.parse_args()

def train(model, loader, optimizer):
    for step, batch in enumerate(loader):
        (model(batch).mean() / args.{accumulation}).backward()
        if (step + 1) % args.{accumulation} == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "name", ["grad_accum", "gradient_accumulation_steps", "accumulation", "accum_iter", "acc_steps"]
)
def test_one_batch_takes_the_same_samples_to_a_step(name: str) -> None:
    after = fixed(OPTIONS.format(accumulation=name, times=8), "DAT106")
    assert '"--batch_size", type=int, default=8)' in after
    assert f'"--{name}", type=int, default=1)' in after


@pytest.mark.parametrize("times", ["1", "512", "None"])
def test_without_accumulation_the_batch_size_is_left_to_its_owner(times: str) -> None:
    source = OPTIONS.format(accumulation="grad_accum", times=times)
    assert fixed(source, "DAT106") == source
