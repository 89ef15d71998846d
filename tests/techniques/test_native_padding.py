"""Padding is left out where no output can depend on it, and changes no bit of any; elsewhere it is computed."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from model_families import TEXT, text, texts
from run_operations import InterpretedPlan
from torch import Tensor, nn
from torch.nn import functional

from whet.core.artefact import load
from whet.core.artefact.native import binding
from whet.core.artefact.native.runtime import NativeRuntime
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.kernels.graph.plan import Plan
from whet.kernels.graph.seen import SeenRows
from whet.techniques.backend import native
from whet.techniques.backend.native import Options
from whet.techniques.technique import Candidate


class Pooled(nn.Module):
    """Give one vector of a text from those of its places."""

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.pool = encoder or hf.BertModel(hf.BertConfig(**TEXT), add_pooling_layer=False), pool

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.pool(states, attention_mask)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """As sentence-transformers writes it."""
    factor = mask.unsqueeze(-1).expand(states.size()).float()
    return torch.sum(states * factor, 1) / torch.clamp(factor.sum(1), min=1e-9)


def normalised_mean(states: Tensor, mask: Tensor) -> Tensor:
    mean = (states * mask[..., None].to(states.dtype)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    return functional.normalize(mean, dim=-1)


class Convolved(nn.Module):
    """Mix the states of neighbours, so that one of padding reaches one that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.layer = Pooled(self.pool), nn.Conv1d(48, 48, 3, padding=1)

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        return masked_mean(self.layer(states.mT).mT, mask)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.inner(input_ids, attention_mask)


class Unmasked(nn.Module):
    """Attend to all places, and leave out those of padding from the mean alone."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(48, 3, 64, batch_first=True)
        self.table, self.inner = nn.Embedding(100, 48), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return masked_mean(self.inner(self.table(input_ids)), attention_mask)


def modernbert() -> nn.Module:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return hf.ModernBertForSequenceClassification(
        hf.ModernBertConfig(**TEXT, **ids, global_attn_every_n_layers=2, local_attention=8)
    )


def t5() -> nn.Module:
    sizes = {"vocab_size": 100, "d_model": 48, "d_kv": 16, "d_ff": 80, "num_layers": 2, "num_heads": 3}
    return hf.T5EncoderModel(hf.T5Config(**sizes))


LEFT_OUT: dict[str, Callable[[], nn.Module]] = {
    "classifier": lambda: hf.BertForSequenceClassification(hf.BertConfig(**TEXT, num_labels=5)),
    "masked mean": lambda: Pooled(masked_mean),
    "normalised mean": lambda: Pooled(normalised_mean),
    "last place": lambda: Pooled(lambda states, mask: states[:, -1]),
    "modernbert": modernbert,
    "t5's encoder": lambda: Pooled(masked_mean, t5()),
    "mpnet": lambda: Pooled(masked_mean, hf.MPNetModel(hf.MPNetConfig(**TEXT), add_pooling_layer=False)),
    "clip's text tower": lambda: Pooled(
        lambda states, mask: states[torch.arange(states.shape[0]), mask.sum(1) % 7],
        hf.CLIPTextModel(hf.CLIPTextConfig(**TEXT, max_position_embeddings=40, eos_token_id=99)),
    ),
}
COMPUTED: dict[str, Callable[[], nn.Module]] = {
    "states": lambda: hf.BertModel(hf.BertConfig(**TEXT)),
    "unmasked mean": lambda: Pooled(lambda states, mask: states.mean(1)),
    "the mean of padding": lambda: Pooled(lambda states, mask: (states * (1 - mask)[..., None]).sum(1)),
    "several places": lambda: Pooled(lambda states, mask: states[:, 1:].sum(1) * mask[:, :1]),
    "a convolution": Convolved,
    "attention without a mask": Unmasked,
}
MASKS: dict[str, Callable[[], dict[str, Tensor]]] = {
    "none": lambda: text(3, 11),
    "right": lambda: text(4, 19, (0, 3), (0, 18), (0, 0), (0, 9)),
    "left": lambda: text(3, 19, (3, 0), (18, 0), (0, 0)),
    "mixed": lambda: text(4, 23, (3, 0), (0, 7), (5, 5)),
    "empty": lambda: text(4, 13, (0, 13), (0, 4), (13, 0)),
    "one text": lambda: text(1, 21, (2, 8)),
    "holes": lambda: {**text(3, 40), "attention_mask": (torch.arange(120).reshape(3, 40) % 7 > 2).long()},
}
QUICK = ("classifier", "masked mean", "states")


@functools.cache
def examined(name: str) -> ExaminedWorkload:
    torch.manual_seed(0)
    model = {**LEFT_OUT, **COMPUTED}[name]()
    return examine(Workload(model=model.eval(), inputs=texts(), name="model"))


@functools.cache
def runtime(name: str, precision: str) -> NativeRuntime:
    found = native.apply(Candidate.original(examined(name)), Options(precision=precision)).runtime
    assert isinstance(found, NativeRuntime)
    return found


@functools.cache
def computing_all(name: str, precision: str) -> NativeRuntime:
    """The same program that computes padding."""
    return runtime(name, precision).leaving_out(None)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """How many rows each call of a plan worked on; None for all."""
    found: list[int | None] = []
    run = Plan.run

    def counting(self: Plan, seen: SeenRows | None = None) -> None:
        found.append(None if seen is None else seen.num_seen)
        run(self, seen)

    monkeypatch.setattr(Plan, "run", counting)
    return found


def flat(name: str, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return examined(name).flat(batch)


def exact(name: str, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return Candidate.original(examined(name)).call(*flat(name, batch))


def each(names: dict[str, Callable[[], nn.Module]]) -> pytest.MarkDecorator:
    marked = [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in names]
    return pytest.mark.parametrize("name", marked)


@pytest.mark.parametrize("precision", ["f32", "int8"])
@each(LEFT_OUT)
def test_no_bit_changes(name: str, precision: str, counted: list[int | None]) -> None:
    """With any mask, though fewer rows are computed; and in float32 they are what the model gives."""
    for how, make in MASKS.items():
        batch = make()
        wanted = computing_all(name, precision).run(flat(name, batch))
        found = runtime(name, precision).run(flat(name, batch))
        assert all(map(torch.equal, found, wanted))
        assert counted[-2] is None
        if how != "empty":  # there, masks that are added to scores let a row see all
            num_ones, num_rows = int(batch["attention_mask"].sum()), len(batch["attention_mask"])
            count = counted[-1] or batch["attention_mask"].numel()
            assert num_ones <= count <= num_ones + num_rows
        if precision == "f32":
            for y, right in zip(found, exact(name, batch), strict=True):
                torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)


@each(COMPUTED)
def test_where_outputs_depend_on_padding_it_is_computed(name: str, counted: list[int | None]) -> None:
    batch = MASKS["right"]()
    for y, right in zip(runtime(name, "f32").run(flat(name, batch)), exact(name, batch), strict=True):
        torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)
    assert counted[-1] is None
    assert runtime(name, "f32").program.padding is None or name == "the mean of padding"


@pytest.mark.parametrize("name", ["classifier", "masked mean"])
def test_a_text_is_the_same_alone(name: str) -> None:
    """Bit for bit, without the padding that longer texts bring."""
    batch, lengths = text(4, 30, (0, 3), (0, 29), (0, 0), (0, 17)), (27, 1, 30, 13)
    (together,) = runtime(name, "int8").run(flat(name, batch))
    for i, length in enumerate(lengths):
        (alone,) = runtime(name, "int8").run(flat(name, {key: x[i : i + 1, :length] for key, x in batch.items()}))
        assert torch.equal(together[i : i + 1], alone)


def test_what_stands_at_padding_changes_nothing() -> None:
    batch = MASKS["mixed"]()
    hidden = batch["attention_mask"] == 0
    (first,), (second,) = (
        runtime("masked mean", "int8").run(flat("masked mean", {**batch, "input_ids": ids}))
        for ids in (batch["input_ids"], torch.where(hidden, torch.randint(3, 100, hidden.shape), batch["input_ids"]))
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["classifier", "masked mean", pytest.param("modernbert", marks=pytest.mark.thorough)])
def test_no_row_of_padding_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are left out are NaN here, where torch runs the operations."""
    monkeypatch.setattr(binding, "Plan", InterpretedPlan)
    interpreted = runtime(name, "f32").leaving_out(runtime(name, "f32").program.padding)
    for make in MASKS.values():
        batch = make()
        for y, right in zip(interpreted.run(flat(name, batch)), exact(name, batch), strict=True):
            torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-6)


def test_the_artefact_says_so(tmp_path: Path, counted: list[int | None]) -> None:
    padding = runtime("classifier", "int8").program.padding
    assert padding is not None
    assert padding.masks == {"attention_mask": 1}
    tuned = native.apply(Candidate.original(examined("classifier")), Options())
    batch = MASKS["right"]()
    wanted = tuned.call(*flat("classifier", batch))
    found = load(tuned.save(tmp_path)).runtime.run(flat("classifier", batch))
    assert all(map(torch.equal, found, wanted))
    assert counted[-1] == counted[-2] == int(batch["attention_mask"].sum())
