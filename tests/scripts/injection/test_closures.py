"""Scripts whose optimiser computes the loss in a closure: plain ones, LBFGS, and Lightning's loops."""

from pathlib import Path

import pytest
import script_process
import torch
from script_runs import run

from whet.core.recipe import Step

FUSED = Step(technique="fused_optimizer")

CLOSURE = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(20):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)
        loss.backward()
        return loss
    loss = optimizer.step({argument})
    open("losses.txt", "a").write(f"{{loss.item()}}\\n")
"""

PLAIN = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(20):
    optimizer.zero_grad()
    F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y).backward()
    optimizer.step()
"""

CURVE = """
import torch

class Curve(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(1, 32), torch.nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))

torch.manual_seed(1)
x = torch.linspace(-3, 3, 100)[:, None]
y = torch.sin(2 * x)
curve, criterion = Curve(), torch.nn.MSELoss()
optimizer = torch.optim.LBFGS(curve.parameters(), lr=0.5, max_iter=5)
for i in range(12):
    print("STEP:", i)
    def closure():
        optimizer.zero_grad()
        loss = criterion(curve(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
"""

LIT_CLASSIFIER = """
import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class LitClassifier(L.LightningModule):
    def __init__(self, hidden=24):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

L.seed_everything(7)
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 3, (256,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
trainer = L.Trainer(max_epochs=2, accelerator="cpu", gradient_clip_val=1.0, enable_progress_bar=False, logger=False)
trainer.fit(LitClassifier(), loader, DataLoader(data, batch_size=64))
"""

LIT_AUTOENCODER = """
import lightning.pytorch as pl
import torch
from torch import nn, utils

class LitAutoEncoder(pl.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        x_hat = self.decoder(self.encoder(x))
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss, prog_bar=True)
        return {"loss": loss, "x_hat": x_hat.detach()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

pl.seed_everything(3, workers=True)
encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
decoder = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 16))
loader = utils.data.DataLoader(utils.data.TensorDataset(torch.randn(512, 4, 4), torch.zeros(512)), batch_size=8)
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, enable_model_summary=False)
trainer.fit(LitAutoEncoder(encoder, decoder), train_dataloaders=loader)
"""


LIT_LAYERS = LIT_CLASSIFIER.replace(
    "self.net = torch.nn.Sequential(torch.nn.Linear(8, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 3))",
    "self.first, self.last = torch.nn.Linear(8, hidden), torch.nn.Linear(hidden, 3)",
).replace("return self.net(x)", "return self.last(torch.relu(self.first(x)))")


@pytest.fixture(autouse=True)
def as_forks(children_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    script_process.use(monkeypatch)


@pytest.mark.parametrize("argument", ["closure", "closure=closure"])
def test_a_closure_trains_as_the_same_steps_without_one(place: Path, argument: str) -> None:
    """The first call, which only finds the loop, must draw no number and update nothing."""
    plain, closed = run(place, PLAIN).record, run(place, CLOSURE.format(argument=argument)).record
    assert plain is not None and closed is not None
    assert closed.losses == plain.losses
    assert (closed.model, closed.optimizer) == ("Sequential", "AdamW")
    assert {step.technique for step in closed.applicable} == {step.technique for step in plain.applicable}


def test_a_proof_of_a_closure_has_the_gradients_of_its_steps(place: Path) -> None:
    own = run(place, CLOSURE.format(argument="closure"), is_proof=True)
    fused = run(place, CLOSURE.format(argument="closure"), is_proof=True, steps=(FUSED,))
    for found in (own, fused):
        assert found.record is not None and found.record.updates is not None and found.record.updates.is_same is True
    assert own.record is not None and fused.record is not None
    torch.testing.assert_close(torch.tensor(own.record.losses), torch.tensor(fused.record.losses), rtol=1e-4, atol=0.0)


def test_lbfgs_has_one_loss_a_step_and_is_not_replaced(place: Path) -> None:
    found = run(place, CURVE, is_proof=True)
    assert found.record is not None, found.failure
    losses = [loss for loss in found.record.losses if loss is not None]
    assert len(losses) == 8 and losses == sorted(losses, reverse=True), "the loss at the begin of each step"
    assert (found.record.model, found.record.optimizer) == ("Curve", "LBFGS")
    assert found.record.refused["fused_optimizer"].startswith("LBFGS computes the loss several times in a step")
    assert "compile" in {step.technique for step in found.record.applicable} | found.record.refused.keys()
    again = run(place, CURVE, is_proof=True).record
    assert again is not None and again.losses == found.record.losses


@pytest.mark.parametrize(
    ("source", "model"),
    [(LIT_CLASSIFIER, "LitClassifier"), (LIT_LAYERS, "LitClassifier"), (LIT_AUTOENCODER, "LitAutoEncoder")],
)
def test_lightning_s_loops_are_found_and_take_a_recipe(place: Path, source: str, model: str) -> None:
    pytest.importorskip("lightning")
    own = run(place, source)
    assert own.record is not None, own.failure
    assert (own.record.model, len(own.record.losses)) == (model, 8)
    assert {"fused_optimizer", "loader"} <= {step.technique for step in own.record.applicable}
    assert "one by one" not in " ".join(own.record.refused.values()), "the module itself is called"
    fused = run(place, source, is_proof=True, steps=(FUSED,))
    assert fused.record is not None and fused.record.updates is not None, fused.failure
    assert fused.record.updates.is_same is True
    assert fused.record.learning_rates == own.record.learning_rates
    assert sorted(path.name for path in place.iterdir()) == ["train.py"]


def test_a_closure_that_calls_parts_alone_is_heard_once(place: Path) -> None:
    parts = CLOSURE.replace("model(x", "model[2](model[0](x").replace("(x))", "(x)))").format(argument="closure")
    closed = run(place, parts).record
    plain = run(place, PLAIN.replace("model(x", "model[2](model[0](x").replace("(x))", "(x)))")).record
    assert plain is not None and closed is not None
    assert closed.losses == plain.losses


def test_a_closure_that_draws_its_batch_is_refused(place: Path) -> None:
    draws = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(DataLoader(torch.randn(40, 2), batch_size=2))
def closure():
    loss = model(next(batches)).square().mean()
    loss.backward()
    return loss
for step in range(20):
    optimizer.step(closure)
"""
    assert run(place, draws).failure.startswith("the closure of optimizer.step draws its batch itself; draw it before")


def test_a_model_whose_parts_alone_are_called_keeps_its_forward(place: Path) -> None:
    parts = """
import torch

class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

pair = Pair()
optimizer = torch.optim.SGD(pair.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    pair.decoder(pair.encoder(torch.randn(2, 4))).square().sum().backward()
    optimizer.step()
"""
    record = run(place, parts).record
    assert record is not None and record.model == "Pair"
    assert record.refused["compile"] == "the script calls parts of Pair one by one, and never the whole"
    assert "fused_optimizer" in {step.technique for step in record.applicable}
