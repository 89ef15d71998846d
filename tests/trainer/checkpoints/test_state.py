"""Models, optimisers and schedules come back bit for bit, so that a resumed training is the same."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_training import VOCAB, TinyLM, TinyNet, loss_of
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.errors import CheckpointError, OptionError
from whet.techniques.mechanisms.loss_scale import LossScale, loss_scale_of, scale_gradients
from whet.techniques.mechanisms.master_weights import keep_in_bfloat16, value_of
from whet.techniques.mechanisms.muon import MuonWithAdamW
from whet.trainer.checkpoints import (
    Checkpoints,
    TrainingState,
    load_model,
    load_optimizer,
    load_state_of,
    model_tensors,
    optimizer_tensors,
    state_of,
)

Make = Callable[[nn.Module], Optimizer]


def through_disk(state: TrainingState, directory: Path) -> TrainingState:
    with Checkpoints(directory) as checkpoints:
        checkpoints.save(1, state, wait=True)
        return checkpoints.load(directory / "step-00000001")


def groups_of(model: nn.Module, *, is_reversed: bool) -> list[dict[str, Any]]:
    """Return matrices and the rest as groups. The second model has groups and parameters in another order."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "lr": 2e-3}, {"params": others, "lr": 1e-3}]
    if is_reversed:
        groups = [{**group, "params": group["params"][::-1]} for group in groups[::-1]]
    return groups


def adamw_8bit(groups: list[dict[str, Any]]) -> Optimizer:
    from torchao.optim import AdamW8bit

    return AdamW8bit(groups)


def adamw_4bit(groups: list[dict[str, Any]]) -> Optimizer:
    from torchao.optim import AdamW4bit

    return AdamW4bit(groups)


def tensor_lr(groups: list[dict[str, Any]]) -> Optimizer:
    return torch.optim.AdamW([{**group, "lr": torch.tensor(group["lr"])} for group in groups], foreach=False)


def muon(groups: list[dict[str, Any]]) -> Optimizer:
    return MuonWithAdamW(groups, [p for group in groups for p in group["params"] if p.dim() == 2])


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], Optimizer]] = {
    "AdamW": torch.optim.AdamW,
    "AdamW, fused": lambda groups: torch.optim.AdamW(groups, fused=True, betas=(0.8, 0.99)),
    "AdamW, amsgrad": lambda groups: torch.optim.AdamW(groups, amsgrad=True),
    "AdamW, tensor as lr": tensor_lr,
    "AdamW8bit": adamw_8bit,
    "AdamW4bit": adamw_4bit,
    "SGD": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
    "SGD, plain": torch.optim.SGD,
    "Adafactor": torch.optim.Adafactor,
    "Muon": muon,
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.9, centered=True),
    "NAdam": torch.optim.NAdam,
    "Rprop": torch.optim.Rprop,
}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchao's optimisers run as they are. What they compile takes seconds."""
    compiled = torch.compile

    def as_it_is(function: Any = None, **options: Any) -> Any:
        return function if getattr(function, "__name__", "") == "single_param_adam" else compiled(function, **options)

    monkeypatch.setattr(torch, "compile", as_it_is)


def batch_of(step: int) -> Tensor:
    return torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(step))


def train(model: nn.Module, optimizer: Optimizer, steps: Iterable[int]) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, batch_of(step)).backward()
        optimizer.step()


def assert_same_training(one: tuple[nn.Module, Optimizer], other: tuple[nn.Module, Optimizer]) -> None:
    """Compare all values, and all states by the parameters' names."""
    for (name, p), (_, q) in zip(one[0].named_parameters(), other[0].named_parameters(), strict=True):
        assert torch.equal(value_of(p), value_of(q)), name
        mine, theirs = one[1].state.get(p, {}), other[1].state.get(q, {})
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert type(value) is type(theirs[key])
            if isinstance(value, Tensor):
                assert value.dtype == theirs[key].dtype
                assert value.stride() == theirs[key].stride()
                assert torch.equal(value.dequantize() if hasattr(value, "codes") else value, _dense(theirs[key])), key
            else:
                assert value == theirs[key]


def _inner(value: Any) -> Tensor:
    inner: Tensor = getattr(value, "codes", value)
    return inner


def _dense(value: Any) -> Tensor:
    dense: Tensor = value.dequantize() if hasattr(value, "codes") else value
    return dense


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = TinyLM()
    optimizer = OPTIMIZERS[name](groups_of(model, is_reversed=False))
    train(model, optimizer, range(3))
    read = through_disk(model_tensors(model) | optimizer_tensors(model, optimizer), tmp_path)
    train(model, optimizer, range(3, 6))
    other = TinyLM()
    resumed = OPTIMIZERS[name](groups_of(other, is_reversed=True))  # by name, in whatever order
    if name != "AdamW":
        train(other, resumed, range(7, 8))  # and whatever it did before
    load_model(other, read)
    load_optimizer(other, resumed, read)
    assert [group["lr"] for group in resumed.param_groups] == [group["lr"] for group in optimizer.param_groups[::-1]]
    train(other, resumed, range(3, 6))
    assert_same_training((model, optimizer), (other, resumed))
    assert torch.equal(
        read.tensors["model.head.weight"], through_disk(read, tmp_path / "2").tensors["model.head.weight"]
    )


def test_lbfgs_goes_on(tmp_path: Path) -> None:
    """It keeps lists of tensors, for all parameters together."""

    def steps(model: nn.Module, optimizer: torch.optim.LBFGS) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(torch.eye(3)) - torch.arange(6.0).view(3, 2)).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    def made() -> tuple[nn.Module, torch.optim.LBFGS]:
        model = nn.Linear(3, 2)
        return model, torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=3)

    model, optimizer = made()
    steps(model, optimizer)
    read = through_disk(model_tensors(model) | optimizer_tensors(model, optimizer), tmp_path)
    steps(model, optimizer)
    other, resumed = made()
    load_model(other, read)
    load_optimizer(other, resumed, read)
    steps(other, resumed)
    assert torch.equal(model.weight, other.weight)


def test_the_settings_of_groups_come_back(tmp_path: Path) -> None:
    model = TinyLM()
    optimizer = torch.optim.AdamW(groups_of(model, is_reversed=False), betas=(0.7, 0.98), eps=1e-7)
    optimizer.param_groups[1] |= {"lr": 0.123, "initial_lr": 0.5, "weight_decay": 0.0}
    read = through_disk(optimizer_tensors(model, optimizer), tmp_path)
    other = torch.optim.AdamW(groups_of(model, is_reversed=True))
    load_optimizer(model, other, read)
    for mine, theirs in zip(optimizer.param_groups, other.param_groups[::-1], strict=True):
        assert {name: value for name, value in mine.items() if name != "params"} == {
            name: value for name, value in theirs.items() if name != "params"
        }


def test_states_in_another_dtype_than_the_parameters(tmp_path: Path) -> None:
    """Optimizer.load_state_dict casts them, which loses bits."""
    model = nn.Linear(3, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    optimizer.state[model.weight]["momentum_buffer"] = torch.randn(3, 3)
    read = through_disk(optimizer_tensors(model, optimizer), tmp_path)
    other = torch.optim.SGD(model.parameters(), momentum=0.9)
    other.load_state_dict(optimizer.state_dict())
    assert other.state[model.weight]["momentum_buffer"].dtype == torch.bfloat16
    load_optimizer(model, other, read)
    assert torch.equal(other.state[model.weight]["momentum_buffer"], optimizer.state[model.weight]["momentum_buffer"])


def test_states_keep_their_order_in_memory(tmp_path: Path) -> None:
    def training() -> tuple[nn.Module, Optimizer]:
        model = TinyNet().to(memory_format=torch.channels_last)
        return model, torch.optim.AdamW(model.parameters())

    def steps(model: nn.Module, optimizer: Optimizer) -> None:
        for step in range(2):
            optimizer.zero_grad()
            x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
            F.cross_entropy(model(x), torch.arange(4)).backward()
            optimizer.step()

    model, optimizer = training()
    steps(model, optimizer)
    read = through_disk(model_tensors(model) | optimizer_tensors(model, optimizer), tmp_path)
    other, resumed = training()
    load_model(other, read)
    load_optimizer(other, resumed, read)
    steps(model, optimizer)
    steps(other, resumed)
    assert_same_training((model, optimizer), (other, resumed))
    assert torch.equal(model.norm.running_var, other.norm.running_var)
    assert other.norm.num_batches_tracked == 4


@pytest.mark.parametrize("by_chance", [False, True], ids=["masters", "by chance"])
def test_parameters_in_bfloat16_go_on_bit_for_bit(by_chance: bool, tmp_path: Path) -> None:
    def training() -> tuple[nn.Module, Optimizer]:
        model = TinyLM()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        matrices = [p for p in model.parameters() if p.dim() >= 2]
        keep_in_bfloat16(model, optimizer, matrices, by_chance=by_chance)
        return model, optimizer

    def steps(model: nn.Module, optimizer: Optimizer, numbers: Iterable[int]) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            train(model, optimizer, numbers)

    model, optimizer = training()
    steps(model, optimizer, range(3))
    read = through_disk(model_tensors(model) | optimizer_tensors(model, optimizer), tmp_path)
    assert read.tensors["model.head.weight"].dtype == torch.float32
    torch.manual_seed(77)  # another process has another seed, from which rounding by chance would begin
    other, resumed = training()
    load_model(other, read)
    load_optimizer(other, resumed, read)
    steps(model, optimizer, range(3, 6))
    steps(other, resumed, range(3, 6))
    assert other.head.weight.dtype == torch.bfloat16
    assert_same_training((model, optimizer), (other, resumed))


def test_the_scale_of_the_loss_comes_back(tmp_path: Path) -> None:
    def training() -> tuple[nn.Module, Optimizer]:
        model = TinyLM()
        optimizer = torch.optim.AdamW(model.parameters())
        scale = LossScale(model, init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2)
        scale_gradients(model, optimizer, scale)
        return model, optimizer

    model, optimizer = training()
    train(model, optimizer, range(3))
    read = through_disk(model_tensors(model) | optimizer_tensors(model, optimizer), tmp_path)
    other, resumed = training()
    load_model(other, read)
    load_optimizer(other, resumed, read)
    train(model, optimizer, range(3, 6))
    train(other, resumed, range(3, 6))
    scales = [loss_scale_of(one) for one in (model, other)]
    assert [float(scale.scale) for scale in scales if scale is not None] == [8192.0, 8192.0]
    assert_same_training((model, optimizer), (other, resumed))


def test_optimizers_that_do_not_fit_are_refused() -> None:
    model = TinyLM()
    state = optimizer_tensors(model, torch.optim.AdamW(model.parameters()))
    with pytest.raises(CheckpointError, match="holds the state of AdamW, and the optimiser is SGD; train with"):
        load_optimizer(model, torch.optim.SGD(model.parameters()), state)
    with pytest.raises(CheckpointError, match=r"groups: the optimiser does not update embedding\.weight; make"):
        load_optimizer(model, torch.optim.AdamW(list(model.parameters())[1:]), state)
    with pytest.raises(CheckpointError, match="groups: the parameters are divided otherwise"):
        load_optimizer(model, torch.optim.AdamW(groups_of(model, is_reversed=False)), state)
    few = optimizer_tensors(model, torch.optim.AdamW(list(model.parameters())[:-1]))
    with pytest.raises(CheckpointError, match=r"it has no state for head\.bias"):
        load_optimizer(model, torch.optim.AdamW(model.parameters()), few)
    with pytest.raises(CheckpointError, match="the checkpoint has no part 'optimizer'"):
        load_optimizer(model, torch.optim.AdamW(model.parameters()), TrainingState())
    with pytest.raises(OptionError, match=r"a parameter of the shape \[3\] that the model does not have"):
        optimizer_tensors(model, torch.optim.SGD([nn.Parameter(torch.zeros(3))]))
    keeps_more = torch.optim.SGD(model.parameters())
    keeps_more.state["everything"] = {}  # type: ignore[index]
    with pytest.raises(OptionError, match="SGD keeps a state 'everything' that belongs to no parameter"):
        optimizer_tensors(model, keeps_more)
    keeps_more.state.clear()
    keeps_more.state[model.head.bias]["what"] = object()
    with pytest.raises(OptionError, match=r"optimizer\.state\.head\.bias\.what is an object, which a checkpoint does"):
        optimizer_tensors(model, keeps_more)


def test_models_that_do_not_fit_stay_as_they_are() -> None:
    model, other = nn.Linear(3, 4), nn.Linear(3, 4)
    before = other.weight.clone()
    state = model_tensors(model)
    for tensors, message in (
        ({"model.weight": model.weight}, "it lacks bias"),
        ({**state.tensors, "model.more": model.bias}, "the model has no more"),
        ({**state.tensors, "model.bias": torch.zeros(5)}, r"bias has the shape \[5\], and the model's \[4\]"),
        ({**state.tensors, "model.bias": torch.zeros(4).double()}, r"bias is torch\.float64, and the model's is"),
        ({}, "it lacks bias; it lacks weight; build the model as in the run that saved it"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_model(other, TrainingState(dict(tensors)))
        assert torch.equal(other.weight, before)
    load_model(other, state)
    assert torch.equal(other.weight, model.weight)


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"a": 1}


def test_extra_states_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(OptionError, match=r"the model's _extra_state is a dict"):
        model_tensors(Extra(2, 2))


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "steps": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "sequence": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9),
        ],
        [3],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("has_tensor", [False, True])
def test_schedules_go_on(name: str, has_tensor: bool, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)

    def made() -> tuple[Optimizer, Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1) if has_tensor else 0.1)
        return optimizer, SCHEDULES[name](optimizer)

    def rates(optimizer: Optimizer, schedule: Any) -> list[float]:
        found = []
        for _ in range(4):
            optimizer.step()
            schedule.step()
            found.append(float(optimizer.param_groups[0]["lr"]))
        return found

    optimizer, schedule = made()
    rates(optimizer, schedule)
    read = through_disk(state_of("schedule", schedule) | optimizer_tensors(model, optimizer), tmp_path)
    other, resumed = made()
    load_state_of("schedule", resumed, read)
    load_optimizer(model, other, read)
    assert rates(other, resumed) == rates(optimizer, schedule)
    with pytest.raises(CheckpointError, match="the checkpoint has no part 'sampler'"):
        load_state_of("sampler", resumed, read)
