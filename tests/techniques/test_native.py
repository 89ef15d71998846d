"""The native technique: programs of whet's kernels equal the model, whatever the sizes and masks, or are refused."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from model_families import REFUSED, WHOLE, text
from reloading import assert_the_same_when_reloaded
from run_operations import InterpretedPlan
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from whet.core.artefact.native import binding
from whet.core.artefact.native.program import Program
from whet.core.artefact.native.runtime import NativeRuntime
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import InputsError, KernelsError, OptionError, TargetError
from whet.measure.machine import describe
from whet.techniques.backend import native
from whet.techniques.backend.native import Options
from whet.techniques.technique import Applies, Candidate, NotApplicable

F32, INT8 = Options(precision="f32"), Options(precision="int8")


def examined(model: nn.Module, batches: list[Any]) -> ExaminedWorkload:
    return examine(Workload(model=model.eval(), inputs=batches, name="model"))


def applied(model: nn.Module, batches: list[Any], options: Options = F32) -> Candidate:
    return native.apply(Candidate.original(examined(model, batches)), options)


def program_of(tuned: Candidate) -> Program:
    assert isinstance(tuned.runtime, NativeRuntime)
    return tuned.runtime.program


def steps_of(tuned: Candidate) -> dict[str, int]:
    names = [step.step for step in program_of(tuned).steps]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())


def worst_cosine(found: Tensor, wanted: Tensor) -> float:
    """Of the rows of the last dimension; of images, of each whole one: a single pixel has a sign and no direction."""
    found, wanted = (x.flatten(1) if x.dim() == 4 else x for x in (found, wanted))
    return float(functional.cosine_similarity(found.double(), wanted.double(), dim=-1).min())


def answers(subject: ExaminedWorkload, tuned: Candidate, batch: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """What the candidate and the original in float64 answer."""
    flat = subject.flat(batch)
    with torch.no_grad():
        wanted = Candidate.original(subject).call(*flat)
    for y, exact in zip(tuned.call(*flat), wanted, strict=True):
        assert (y.shape, y.dtype) == (exact.shape, exact.dtype)
        yield y, exact


@functools.cache
def bert() -> ExaminedWorkload:
    torch.manual_seed(0)
    return examined(*WHOLE["bert"]())


@functools.cache
def native_bert(options: Options) -> Candidate:
    return native.apply(Candidate.original(bert()), options)


MASKED = {
    "without padding": [text(1, 5), text(5, 2), text(1, 64)],
    "left and right": [text(4, 13, (4, 0), (0, 6), (0, 12), (1, 1))],
    "an empty row": [text(3, 13, (2, 0), (13, 0), (0, 3))],
    "all but one token": [text(2, 31, (30, 0), (0, 30))],
}


@pytest.mark.parametrize("name", MASKED)
def test_sizes_and_masks_that_it_was_not_shown(name: str) -> None:
    for batch in MASKED[name]:
        for y, wanted in answers(bert(), native_bert(F32), batch):
            assert relative(y, wanted) < 1e-5
        for y, wanted in answers(bert(), native_bert(INT8), batch):
            assert 1e-4 < relative(y, wanted) < 3e-2
            assert worst_cosine(y, wanted) > 0.999


def test_a_bert_is_linear_layers_with_all_else_in_them() -> None:
    """Three projections are one matrix; bias, activation and residual take no operation of their own."""
    assert steps_of(native_bert(F32)) == {"Embed": 1, "Normalise": 5, "Linear": 9, "Attend": 2}
    activations = [step.activation for step in program_of(native_bert(F32)).steps if step.step == "Linear"]
    assert activations == ["NONE", "NONE", "GELU", "NONE", "NONE", "NONE", "GELU", "NONE", "TANH"]


def test_a_row_does_not_depend_on_what_shares_its_batch() -> None:
    """Bit for bit, and also where others are longer."""
    alone, tuned = text(1, 9), native_bert(INT8)
    (y, _) = tuned.call(*bert().flat(alone))
    for others in (text(3, 9), text(2, 20)):
        both = {
            key: torch.cat([functional.pad(alone[key], (0, others[key].shape[1] - 9)), others[key]]) for key in alone
        }
        (found, _) = tuned.call(*bert().flat(both))
        assert torch.equal(found[:1, :9], y)


def test_an_id_beyond_the_table_is_an_error() -> None:
    batch = text(2, 9)
    batch["input_ids"][1, 3] = 100
    with pytest.raises(InputsError, match="outside an embedding"):
        native_bert(F32).call(*bert().flat(batch))


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_the_program_is_right_without_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations run in torch give the same: a program is right by itself, not by what a kernel makes of it."""
    monkeypatch.setattr(binding, "Plan", InterpretedPlan)
    torch.manual_seed(0)
    model, batches = WHOLE[name]()
    subject = examined(model, batches)
    tuned = native.apply(Candidate.original(subject), F32)
    for batch in batches:
        for y, wanted in answers(subject, tuned, batch):
            assert relative(y, wanted) < 1e-5


@pytest.mark.thorough
def test_reloads_in_a_fresh_process_with_the_same_outputs(tmp_path) -> None:
    """Neither transformers nor torch's compiler is imported there."""
    wanted = {}
    for options in (F32, INT8):
        directory = tmp_path / options.precision
        native_bert(options).save(directory)
        batches = [bert().flat(batch) for batch in [text(2, 9, (2, 0), (0, 3)), text(1, 30)]]
        inputs = {f"{i}.{j}": x for i, batch in enumerate(batches) for j, x in enumerate(batch)}
        save_file(inputs, f"{directory}.inputs.safetensors")
        wanted[directory] = {
            f"{i}.{j}": y for i, b in enumerate(batches) for j, y in enumerate(native_bert(options).call(*b))
        }
        assert sorted(path.name for path in directory.iterdir()) == [
            "artefact.json",
            "model.safetensors",
            "program.json",
        ]
    assert_the_same_when_reloaded(wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("name", WHOLE)
def test_families(name: str) -> None:
    torch.manual_seed(0)
    model, batches = WHOLE[name]()
    subject = examined(model, batches)
    assert isinstance(native.check(subject, describe(), F32), Applies)
    for options in (F32, INT8):
        tuned = native.apply(Candidate.original(subject), options)
        for batch in batches:
            for y, wanted in answers(subject, tuned, batch):
                assert relative(y, wanted) < (1e-5 if options is F32 else 5e-2)
                assert worst_cosine(y, wanted) > (0.99999 if options is F32 else 0.998)


@pytest.mark.thorough
@pytest.mark.parametrize("name", REFUSED)
def test_families_that_are_refused_by_name(name: str) -> None:
    why, build = REFUSED[name]
    model, batches = build()
    subject = examined(model, batches)
    verdict = native.check(subject, describe(), F32)
    assert isinstance(verdict, NotApplicable)
    with pytest.raises(TargetError, match=why):
        native.apply(Candidate.original(subject), F32)


class Written(nn.Module):
    """Run a function between two linear layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Linear(8, 8), nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def doubled_in_place(x: Tensor) -> Tensor:
    y = x * 3
    return y.mul_(2) + x


def view_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:3].mul_(2)
    return y


RIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "in place": doubled_in_place,
    "relu in place": lambda x: functional.relu(x + 1, inplace=True) - x,
    "two uses of an activation": lambda x: functional.gelu(x) * functional.gelu(x) + x,
    "negative slice": lambda x: functional.pad(x[:, -3:], (5, 0)),
    "slice beyond the end": lambda x: functional.pad(x[:, -30:5], (0, 3)),
    "cat": lambda x: torch.cat([x[:, 4:], x.neg()[:, :4]], 1),
    "max over columns": lambda x: x + x.amax(0),
    "mean over all": lambda x: x - x.mean(),
    "softmax over rows": lambda x: x.softmax(0),
    "power": lambda x: x.abs() ** 1.5 + x**2 - x**3,
    "product of activations": lambda x: x @ (x.T @ x),
    "gated": lambda x: functional.silu(x) * x,
    "rsub": lambda x: 1 - x,
    "add with a factor": lambda x: torch.add(x, x * x, alpha=0.5),
    "division by its own norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "constant of whole numbers": lambda x: x * torch.arange(8),
    "layer norm": lambda x: functional.layer_norm(x, (8,)) + x,
    "expanded": lambda x: x[:, :1].expand(-1, 8) * x,
}
UNKNOWN: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "a view in place": (r"aten\.(slice|select)_scatter", view_in_place),
    "sort": (r"aten\.sort", lambda x: x.sort(-1)[0]),
    "cumsum": (r"aten\.cumsum", lambda x: x.cumsum(-1)),
    "float64": (r"in float64", lambda x: x.double().sin().float()),
    "comparison": (r"aten\.gt", lambda x: torch.where(x > 0, x, x * 2)),
    "rounding mode": (r"with rounding_mode=floor", lambda x: torch.div(x, 0.3, rounding_mode="floor")),
    "a number of its sizes": (r"depends on the sizes", lambda x: x * x.shape[0]),
}


def rows() -> list[tuple[Tensor]]:
    return [(torch.randn(num_rows, 8),) for num_rows in (3, 5)]


@pytest.mark.parametrize("name", RIGHT)
def test_operators(name: str) -> None:
    model = Written(RIGHT[name])
    subject = examined(model, rows())
    tuned = native.apply(Candidate.original(subject), F32)
    for num_rows in (3, 7):
        for y, wanted in answers(subject, tuned, (torch.randn(num_rows, 8),)):
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_kernels_lack_is_refused_by_name(name: str) -> None:
    why, function = UNKNOWN[name]
    subject = examined(Written(function), rows())
    verdict = native.check(subject, describe(), F32)
    assert isinstance(verdict, NotApplicable)
    with pytest.raises(TargetError, match=why):
        native.apply(Candidate.original(subject), F32)


@pytest.mark.parametrize("how", ["interleaved", "expanded"])
def test_shared_heads_are_not_copied(how: str) -> None:
    def attended(x: Tensor) -> Tensor:
        q, k = x.view(-1, 1, 4, 2).transpose(1, 2), x[:, :4].view(-1, 1, 2, 2).transpose(1, 2)
        v = k * 2
        if how == "interleaved":
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        else:
            k, v = (y[:, :, None].expand(-1, 2, 2, -1, -1).reshape(y.shape[0], 4, -1, 2) for y in (k, v))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 8)

    subject = examined(Written(attended), rows())
    tuned = native.apply(Candidate.original(subject), F32)
    for y, wanted in answers(subject, tuned, (torch.randn(4, 8),)):
        torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    assert "Copy" not in steps_of(tuned)


class LookedUp(nn.Module):
    """Take one place of each row, which the caller names: it may count from the end."""

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        return (x * 2)[torch.arange(x.shape[0]), place]


def test_rows_by_index() -> None:
    batches = [(torch.randn(rows, length, 4), torch.arange(rows) % length) for rows, length in ((2, 5), (3, 7))]
    subject = examined(LookedUp(), batches)
    tuned = native.apply(Candidate.original(subject), F32)
    for place in ([0, 5, 2], [-1, -6, 3]):
        x = torch.randn(3, 6, 4)
        (y,) = tuned.call(x, torch.tensor(place))
        assert torch.equal(y, (x * 2)[torch.arange(3), torch.tensor(place)])
    for place in ([0, 6, 2], [0, 0, -7]):
        with pytest.raises(InputsError, match="an index lies outside"):
            tuned.call(torch.randn(3, 6, 4), torch.tensor(place))


class SpelledNorm(nn.Module):
    """An RMS norm as models spell it out, and what it was made from."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.linspace(0.5, 2, 8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-3)
        return self.last(self.weight * wide.to(x.dtype)) + x


def test_an_rms_norm_that_is_written_out_is_one_operation() -> None:
    torch.manual_seed(0)
    subject = examined(SpelledNorm(), rows())
    tuned = native.apply(Candidate.original(subject), F32)
    for y, wanted in answers(subject, tuned, (torch.randn(4, 8),)):
        torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    assert steps_of(tuned) == {"Elementwise": 1, "Linear": 1}


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_what_is_not_finite_stays_in_its_row(precision: str) -> None:
    subject = examined(Written(functional.gelu), rows())
    tuned = native.apply(Candidate.original(subject), Options(precision=precision))
    x = torch.randn(5, 8)
    x[1, 3], x[3, 0] = torch.nan, torch.inf
    for y, wanted in answers(subject, tuned, (x,)):
        assert torch.equal(y.isnan().any(1), wanted.isnan().any(1))
        assert y[[0, 2, 4]].isfinite().all()


@pytest.mark.thorough
def test_planted_outliers() -> None:
    """A channel a hundred times as large costs int8 some accuracy, and f32 none."""
    torch.manual_seed(0)
    model, batches = WHOLE["bert"]()
    with torch.no_grad():
        model.get_submodule("embeddings.LayerNorm").weight[7] *= 100
    subject = examined(model, batches)
    for options, bound in ((F32, 0.99999), (INT8, 0.9)):
        tuned = native.apply(Candidate.original(subject), options)
        for y, wanted in answers(subject, tuned, batches[0]):
            assert worst_cosine(y, wanted) > bound


def test_without_a_compiler_it_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise KernelsError("none of c++ is installed: install one")

    monkeypatch.setattr(native, "library", missing)
    verdict = native.check(bert(), describe(), F32)
    assert isinstance(verdict, NotApplicable)
    assert "install one" in verdict.reason


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(OptionError, match="'int8', 'f32', 'bf16', not 'int3'"):
        Options(precision="int3")


def test_it_is_refused_in_bfloat16() -> None:
    subject = examined(nn.Linear(8, 8).bfloat16(), [(torch.randn(3, 8).bfloat16(),)])
    verdict = native.check(subject, describe(), F32)
    assert isinstance(verdict, NotApplicable)
    assert "in float32, and input 0 is torch.bfloat16" in verdict.reason
