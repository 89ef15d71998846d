"""A training script runs for some steps in a copy: what is recorded, what is refused, and that nothing else changes."""

import re
import sys
from pathlib import Path

import pytest
import script_process
from script_runs import TRAIN, run

from whet.cli import main
from whet.core.recipe import Recipe, Step
from whet.errors import RecipeError, TargetError
from whet.measure.machine import describe
from whet.scripts.injection.command import ScriptCommand, checked_steps, run_with_recipe
from whet.scripts.injection.messages import GRADIENTS

GAN = """
import torch

generator, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
first, second = (torch.optim.Adam(model.parameters()) for model in (generator, critic))
for step in range(20):
    critic(generator(torch.randn(2, 4))).sum().backward()
    first.step()
    second.step()
"""

TWO_MODELS = """
import torch

encoder, decoder = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
for step in range(20):
    decoder(encoder(torch.randn(2, 4))).sum().backward()
    optimizer.step()
"""

SEVERAL_PROCESSES = """
import os
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(number):
    for step in range(number):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
if os.fork() == 0:
    train(1)
    os._exit(0)
os.wait()
train(20)
"""

LOADS = """
import torch
from torch.utils.data import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.full((4,), index / 12)

torch.manual_seed(2)
model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Numbers(), batch_size=3, shuffle=True)
for epoch in range(3):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""

DROPS = """
import torch
import torch.nn.functional as F

class Attention(torch.nn.Linear):
    def forward(self, x):
        q = super().forward(x)[None, None]
        y = F.scaled_dot_product_attention(q, q, q, None, 0.5 * self.training)
        y = y + F.scaled_dot_product_attention(q, q, q, dropout_p=0.5 * self.training)
        return F.dropout(y, 0.5, self.training) + F.dropout(input=y, p=0.5, training=self.training)

model = Attention(4, 4)
for p in model.parameters():
    torch.nn.init.constant_(p, 0.3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    model(torch.arange(12.0).view(3, 4) / 12).square().mean().backward()
    optimizer.step()
"""

WRITES_OUTSIDE = """
import sys
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), {path!r}) if {in_c} else open({path!r}, "w").write("other")
"""


@pytest.fixture
def as_forks(children_server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    script_process.use(monkeypatch)


@pytest.mark.usefixtures("as_forks")
def test_steps_are_recorded_and_nothing_of_the_users_changes(place: Path) -> None:
    first = run(place, TRAIN, ["100"]).record
    assert first is not None
    assert (first.model, first.optimizer, first.num_parameters) == ("Sequential", "AdamW", 8 * 16 + 16 + 16 * 4 + 4)
    assert (len(first.losses), len(first.seconds)) == (8, 7)
    assert first.learning_rates == [[0.01]] * 8
    assert "autocast" in first.refused or "autocast" in {step.technique for step in first.applicable}
    assert first.refused["channels_last"] == "the model has no convolutions over images"
    again = run(place, TRAIN, ["100"]).record
    assert again is not None and again.losses == first.losses
    shifted = run(place, TRAIN, ["100"], shift=5).record
    assert shifted is not None and shifted.losses != first.losses
    assert sorted(path.name for path in place.iterdir()) == ["train.py"]


@pytest.mark.usefixtures("as_forks")
def test_a_script_s_loader_gets_workers(place: Path) -> None:
    plain = run(place, LOADS).record
    assert plain is not None and len(plain.losses) == 8
    steps = [step for step in plain.applicable if step.technique == "loader"]
    assert [step.options["num_workers"] for step in steps] == [n for n in (1, 2, 4, 8) if n <= 4 * describe().cores]
    assert "prefetch" in {step.technique for step in plain.applicable}
    loaded = run(place, LOADS, steps=(steps[0],)).record
    assert loaded is not None and loaded.losses == plain.losses
    ahead = run(place, LOADS, steps=(Step(technique="prefetch", options={"depth": 2}),)).record
    assert ahead is not None and ahead.losses == plain.losses
    without = run(place, TRAIN, ["100"]).record
    assert without is not None and without.refused["loader"].startswith("the batches come from a tuple")


@pytest.mark.usefixtures("as_forks")
def test_a_proof_has_gradients_and_updates_without_dropout(place: Path) -> None:
    proof = run(place, TRAIN, ["100"], is_proof=True)
    assert proof.record is not None and (proof.directory / GRADIENTS).is_file()
    assert proof.record.updates is not None and proof.record.updates.is_same, proof.record.updates
    fused = run(place, TRAIN, ["100"], is_proof=True, steps=[{"technique": "fused_optimizer"}]).record
    assert fused is not None and fused.losses == pytest.approx(proof.record.losses, rel=1e-4)
    assert fused.updates is not None and fused.updates.is_same
    moved = run(place, TRAIN, ["100"], is_proof=True, moved=1e-3).record
    assert moved is not None and moved.losses[0] != proof.record.losses[0]
    assert moved.losses[0] == pytest.approx(proof.record.losses[0], rel=1e-2)


@pytest.mark.usefixtures("as_forks")
@pytest.mark.parametrize("is_proof", [True, False])
def test_functions_drop_nothing_in_a_proof(place: Path, is_proof: bool) -> None:
    first, second = (run(place, DROPS, seed=seed, is_proof=is_proof).record for seed in (0, 1))
    assert first is not None and second is not None
    assert (first.losses == second.losses) == is_proof


@pytest.mark.usefixtures("as_forks")
def test_a_script_that_ends_early_has_the_steps_that_it_made(place: Path) -> None:
    found = run(place, TRAIN, ["3"]).record
    assert found is not None and len(found.losses) == 3


@pytest.mark.usefixtures("as_forks")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (GAN, r"several optimisers \(Adam, Adam\)"),
        (TWO_MODELS, "the model cannot be recognised: SGD updates parameters that no single module holds"),
        (SEVERAL_PROCESSES, "the script trains in several processes"),
        ("print('nothing')", "train.py made no optimiser step of PyTorch; give it arguments"),
        ("input('batch size? ')", "train.py asks for input; give it all it needs as arguments"),
        ("raise SystemExit(7)", "it ended with exit code 7"),
        ("raise ValueError('no data here')", "it ended with exit code 1: ValueError: no data here"),
        ("import os; os.kill(os.getpid(), 9)", "it was ended by SIGKILL"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_sentence(place: Path, source: str, words: str) -> None:
    found = run(place, source)
    assert found.record is None
    assert re.search(words, found.failure), found.failure


@pytest.mark.usefixtures("as_forks")
@pytest.mark.parametrize("in_c", [False, True])
def test_a_file_outside_of_the_copy_is_not_written(place: Path, in_c: bool) -> None:
    mine = place / "kept.bin"
    mine.write_text("mine")
    found = run(place, WRITES_OUTSIDE.format(path=str(mine), in_c=in_c))
    assert str(mine) in found.failure and "outside its working directory" in found.failure
    assert mine.read_text() == "mine"


@pytest.mark.usefixtures("as_forks")
def test_a_linked_file_is_replaced_before_it_is_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.scripts.injection.overlay._COPIED_BYTES", 10)
    (place / "large.pt").write_text("mine, and larger than ten bytes")
    source = TRAIN.replace('torch.save(model.state_dict(), "model.pt")', "")
    source = source.replace('open("log.txt", "a")', 'torch.save(1, "large.pt"); open("log.txt", "a")')
    assert run(place, source, ["100"]).record is not None
    assert (place / "large.pt").read_text() == "mine, and larger than ten bytes"


@pytest.mark.usefixtures("as_forks")
def test_a_script_that_writes_large_files_is_ended_with_their_name(place: Path) -> None:
    source = "import time; open('big.bin', 'wb').write(b'0' * 3_000_000); time.sleep(60)"
    found = run(place, source, most_written=1_000_000)
    assert "it writes large files (the largest is big.bin, 3.00 MB)" in found.failure


def test_neighbours_can_be_read(place: Path) -> None:
    (place.parent / "data").mkdir()
    (place.parent / "data" / "numbers.txt").write_text("1 2 3")
    found = run(place, "print(open('../data/numbers.txt').read()); raise SystemExit(3)")
    assert found.failure == "it ended with exit code 3: 1 2 3"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bash", "train.sh"], "bash is not a Python command"),
        ([sys.executable, "missing.py"], "there is no script missing.py"),
        ([sys.executable, "-c", "print(1)"], "names no script"),
        ([sys.executable, "-I", "train.py"], "a Python with -I ignores what whet adds to it from outside"),
        ([sys.executable, "-uE", "train.py"], "a Python with -uE ignores"),
        (["python-that-is-missing", "train.py"], "is not found"),
    ],
)
def test_commands_that_are_refused(place: Path, words: list[str], said: str) -> None:
    with pytest.raises(TargetError, match=said):
        ScriptCommand.checked(words)


def test_recipes_that_are_refused() -> None:
    with pytest.raises(RecipeError, match="for calls of a model"):
        checked_steps(Recipe(steps=(Step(technique="channels_last"),)))
    with pytest.raises(RecipeError, match="there is no technique 'magic'"):
        checked_steps(Recipe(kind="training", steps=(Step(technique="magic"),)))
    with pytest.raises(RecipeError, match="the recipe is empty"):
        checked_steps(Recipe(kind="training"))


def test_the_page_s_script_runs_with_its_recipe(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "scripts.md").read_text(encoding="utf-8")
    for name, text in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL):
        (place / name).write_text(text + ("raise SystemExit(5)\n" if name == "train.py" else ""))
    command = "whet run --recipe recipe.toml -- python train.py"
    assert f"    {command}\n" in page
    words = [sys.executable if word == "python" else word for word in command.split()[1:]]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 5  # the script's own
    out, err = capfd.readouterr()
    assert (out, err) == ("", "whet: fused_optimizer applied to Sequential\n")
    assert (place / "model.pt").is_file()


@pytest.mark.parametrize("is_here", [True, False])
def test_a_recipe_from_another_machine_is_said(place: Path, capfd: pytest.CaptureFixture[str], is_here: bool) -> None:
    (place / "train.py").write_text(TRAIN)
    command = ScriptCommand.checked([sys.executable, "train.py", "2"])
    fingerprint = describe().fingerprint if is_here else "0123456789ab"
    recipe = Recipe(kind="training", steps=(Step(technique="fused_optimizer"),), fingerprint=fingerprint)
    scratch = place.parent / "messages"
    scratch.mkdir()
    assert run_with_recipe(command, recipe, scratch) == 0
    said = "whet: the recipe was proved on another machine: its speed here is not known\n"
    assert (said in capfd.readouterr().err) == (not is_here)


@pytest.mark.usefixtures("as_forks")
def test_the_record_says_that_a_technique_changed_nothing(place: Path) -> None:
    found = run(place, TRAIN, ["100"], steps=[{"technique": "document_attention"}]).record
    assert found is not None
    assert [note.partition(":")[2] for note in found.notes] == [" so far it changes nothing"]


PACKED = """import torch
from torch.nn.functional import scaled_dot_product_attention
linear = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
documents = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
same = (documents[:, None] == documents) & torch.ones(8, 8).tril().bool()
for _ in range(12):
    x = linear(torch.ones(1, 1, 8, 4))
    loss = scaled_dot_product_attention(x, x, x, attn_mask=MASK).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("as_forks")
@pytest.mark.parametrize(
    ("source", "share"),
    [
        (PACKED.replace("MASK", "same"), (6 + 10 + 1) / 64),
        (PACKED.replace("MASK", "torch.ones(8, 8).tril().bool()"), 36 / 64),
        (PACKED.replace("MASK", "None"), 1.0),
        (TRAIN, 1.0),
    ],
)
def test_a_watched_run_says_what_is_left_of_attention_within_documents(place: Path, source: str, share: float) -> None:
    found = run(place, source, ["100"], is_watched=True).record
    assert found is not None and found.within_documents == pytest.approx(share)
    unwatched = run(place, source, ["100"]).record
    assert unwatched is not None and unwatched.within_documents is None


def test_a_technique_that_changed_nothing_is_said_after_some_steps(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "train.py").write_text(TRAIN)
    command = ScriptCommand.checked([sys.executable, "train.py", "12"])
    recipe = Recipe(kind="training", steps=(Step(technique="document_attention"),))
    scratch = place.parent / "messages"
    scratch.mkdir()
    assert run_with_recipe(command, recipe, scratch) == 0
    applied, later = capfd.readouterr().err.splitlines()
    assert applied == "whet: document_attention applied to Sequential"
    assert later.startswith("whet: document_attention has met no mask")


def test_a_recipe_that_is_applied_to_nothing_is_said(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "train.py").write_text("print('nothing is trained')")
    command = ScriptCommand.checked([sys.executable, "train.py"])
    recipe = Recipe(kind="training", steps=(Step(technique="fused_optimizer"),))
    scratch = place.parent / "messages"
    scratch.mkdir()
    assert run_with_recipe(command, recipe, scratch) == 0
    assert "the recipe was applied to nothing: no training loop of PyTorch was seen" in capfd.readouterr().err


def test_a_recipe_that_does_not_apply_is_refused_before_training(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "train.py").write_text(TRAIN)
    command = ScriptCommand.checked([sys.executable, "train.py", "12"])
    scratch = place.parent / "messages"
    scratch.mkdir()
    recipe = Recipe(kind="training", steps=(Step(technique="channels_last"),))
    assert run_with_recipe(command, recipe, scratch) == 2
    why = "channels_last cannot be applied here: the model has no convolutions over images"
    assert capfd.readouterr().err == f"error: {why}; leave it out of the recipe\n"
    assert not (place / "log.txt").exists()
