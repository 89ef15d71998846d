"""What whet.watch leaves as it was: PyTorch, the model, its copies, compiled code, the loader, exceptions, threads."""

import contextlib
import copy
import io
import threading
import time
import warnings
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle
import pytest
import torch
from small_loops import NUM_FEATURES, Sleepy, parts, run, train
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

import whet
from whet.errors import TargetError
from whet.profiling.bounds import Bound
from whet.profiling.step.watch import watch, watch_everything

MODULES = [torch, torch.autograd, torch.cuda, torch.distributed, torch.amp, torch.optim]
# what torch.compile and pickle put onto classes when they are first used
PYTORCHS_OWN = ("__init__", "__setstate__", "___needs_generation_tag_patch", "__slotnames__")
WHET = str(Path(whet.__file__).parent)
CLASSES = [Tensor, nn.Module, Optimizer, torch.amp.GradScaler, DataLoader, _BaseDataLoaderIter]
CLASSES += [torch.cuda.Event, torch.cuda.Stream]


def state_of_torch() -> dict[str, Any]:
    """The attributes of the classes that are watched, every hook; each function of PyTorch's that is not PyTorch's."""
    attributes = {
        f"{cls.__qualname__}.{name}": id(value)
        for cls in CLASSES
        for name, value in vars(cls).items()
        if name not in PYTORCHS_OWN
    }
    hooks = {"before a step": dict(_global_optimizer_pre_hooks), "after a step": dict(_global_optimizer_post_hooks)}
    ours = {
        f"{module.__name__}.{name}": id(value)
        for module in MODULES
        for name, value in list(vars(module).items())
        if type(value) is FunctionType and value.__code__.co_filename.startswith(WHET)
    }
    originals = {"backward": torch.autograd.backward, "grad": torch.autograd.grad, "wait": torch.cuda.synchronize}
    return attributes | hooks | ours | originals


def changed(before: dict[str, Any]) -> list[str]:
    """What is not as it was."""
    now = state_of_torch()
    return sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))


@pytest.fixture(autouse=True)
def nothing_stays_changed() -> Any:
    before = state_of_torch()
    yield
    assert changed(before) == []


class Raising:
    """Raises once, at a place and at the third time that it is called."""

    def __init__(self, error: BaseException) -> None:
        self.num_calls = 0
        self.error = error

    def __call__(self, *args: Any) -> None:
        self.num_calls += 1
        if self.num_calls == 3:
            raise self.error


def planted(place: str, error: BaseException) -> tuple[nn.Module, Optimizer, Any, Any]:
    """A model, an optimiser, a loader and a function to be told of steps, one of which raises."""
    model, optimizer, loader = parts(6)
    raising = Raising(error)
    if place == "loader":
        loader = DataLoader(loader.dataset, collate_fn=lambda samples: raising() or samples[0])
    elif place == "forward":
        model.linear.register_forward_hook(raising)
    elif place == "backward":
        model.linear.weight.register_hook(raising)
    elif place == "optimiser":
        optimizer.register_step_pre_hook(raising)
    return model, optimizer, loader, raising if place == "on_step" else None


@pytest.mark.parametrize("error", [ValueError("planted"), KeyboardInterrupt("planted")], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("place", ["loader", "forward", "backward", "optimiser", "on_step"])
def test_pytorch_is_as_it_was_after_an_exception_anywhere(place: str, error: BaseException) -> None:
    before = state_of_torch()
    model, optimizer, loader, on_step = planted(place, error)
    steps = watch(model, optimizer, loader, on_step=on_step)
    hooks = len(model._forward_hooks), len(model._forward_pre_hooks)
    with pytest.raises(type(error), match="planted"):
        for x, y in steps:
            assert changed(before) != []
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    assert changed(before) == []
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == hooks
    assert "_compiled_call_impl" not in vars(type(model))
    assert not {"step", "zero_grad"} & vars(optimizer).keys()

    model, optimizer, loader, on_step = planted(place, error)
    with pytest.raises(type(error), match="planted"), watch_everything(on_step):
        run(train(model, optimizer, loader))
    assert changed(before) == []


def test_pytorch_is_as_it_was_where_a_model_cannot_be_watched() -> None:
    class Closed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise TypeError("nothing to be set here")

    class Unwatchable(nn.Linear, metaclass=Closed):
        pass

    model = Unwatchable(NUM_FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = state_of_torch()
    with pytest.raises(TypeError, match="nothing to be set here"), watch(model, optimizer, parts(3)[2]):
        pass
    assert changed(before) == []
    assert not model._forward_pre_hooks
    assert not {"step", "zero_grad"} & vars(optimizer).keys()


def test_an_exception_keeps_what_was_measured_and_says_so() -> None:
    model, optimizer, loader = parts(30)
    before = vars(model).copy()
    with pytest.raises(ValueError, match="the disk is full"), watch(model, optimizer, loader) as steps:
        for index, _ in enumerate(train(model, optimizer, steps)):
            if index == 12:
                raise ValueError("the disk is full")
    report = steps.report()
    assert report.is_partial
    assert report.ended_by == "ValueError: the disk is full"
    assert "partial" in str(report)
    assert 11 <= report.num_steps <= 13
    assert report.verdict is not Bound.TOO_FEW_STEPS
    assert "step" not in vars(optimizer)
    assert vars(model).keys() == before.keys()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_an_exception_in_the_loader_and_in_the_model_goes_on_and_leaves_nothing_behind() -> None:
    class Broken(Sleepy):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise OSError("the file is gone")
            return super().__getitem__(index)

    model, optimizer, _ = parts(1)
    steps = watch(model, optimizer, DataLoader(Broken(20, 0.0)))
    with pytest.raises(OSError, match="the file is gone"):
        run(train(model, optimizer, steps))
    assert steps.report().num_steps == 7
    assert "step" not in vars(optimizer)

    model, optimizer, loader = parts(20)
    steps = watch(model, optimizer, loader)
    with pytest.raises(RuntimeError, match="shapes"):
        for x, _ in steps:
            model(x[:, :3])
    assert steps.report().num_steps == 0
    assert not model._forward_hooks


def test_an_empty_loader_and_a_loop_that_does_not_train_are_no_error() -> None:
    model, optimizer, loader = parts(10)
    steps = watch(model, optimizer, [])
    assert list(steps) == []
    assert steps.report().num_steps == 0
    steps = watch(model, optimizer, loader)
    for x, _ in steps:
        model(x)
    report = steps.report()
    assert report.verdict is Bound.TOO_FEW_STEPS
    assert report.num_unfinished == 0
    assert "no optimiser made a step" in report.evidence[0]


def test_the_loader_is_what_it_was() -> None:
    model, optimizer, loader = parts(6)
    steps = watch(model, optimizer, loader)
    assert len(steps) == 6
    assert steps.dataset is loader.dataset
    assert steps.batch_size == 1
    assert bool(watch(model, optimizer, []))
    for _ in range(2):
        for (x, _), (expected, _) in zip(steps, loader, strict=True):
            assert torch.equal(x, expected)
    with pytest.raises(AttributeError):
        _ = steps.nothing
    with pytest.raises(TypeError):
        len(watch(model, optimizer, (batch for batch in loader)))


def test_several_epochs_and_a_validation_between_them() -> None:
    model, optimizer, loader = parts(6)
    with watch(model, optimizer, loader) as steps:
        for _ in range(3):
            run(train(model, optimizer, steps))
            time.sleep(0.05)
            for x, _ in loader:
                model(x)
    report = steps.report()
    assert report.num_steps == 18
    assert report.step_ms is not None
    assert report.step_ms < 40


def test_training_is_the_same_with_and_without() -> None:
    losses = []
    for watching in (False, True):
        torch.manual_seed(3)
        model, optimizer, loader = parts(10)
        batches: Any = watch(model, optimizer, loader) if watching else loader
        losses.append([loss.item() for loss in train(model, optimizer, batches)])
    assert losses[0] == losses[1]


def test_copies_and_pickles_of_the_model_made_meanwhile_are_their_own() -> None:
    model, optimizer, loader = parts(8)
    steps = watch(model, optimizer, loader)
    copied = replica = None
    x = torch.randn(2, NUM_FEATURES)
    for index, _ in enumerate(train(model, optimizer, steps)):
        if index == 3:
            copied = copy.deepcopy(model)
            torch.save(model, io.BytesIO())
            torch.save(optimizer.state_dict(), io.BytesIO())
            replica = copy.copy(model)  # as data parallelism makes them: the same attributes, other parameters
            replica._modules = {"linear": copy.deepcopy(model.linear)}
            torch.testing.assert_close(replica(x), model(x))
    assert copied is not None and replica is not None
    with torch.no_grad():
        model.linear.weight.zero_()
        model.linear.bias.zero_()
    for other in (copied, replica):
        assert not torch.equal(other(x), model(x))


def test_a_model_whose_class_is_pickled_by_value() -> None:
    class Local(nn.Linear):
        pass

    model = Local(NUM_FEATURES, 1)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, NUM_FEATURES)
    with watch(model, optimizer, parts(3)[2]):
        written = cloudpickle.dumps(model)
        torch.testing.assert_close(cloudpickle.loads(written)(x), model(x))
    assert vars(Local).get("_compiled_call_impl") is None


def test_of_two_models_of_a_class_each_watch_times_its_own() -> None:
    model, optimizer, loader = parts(8)
    other = copy.deepcopy(model)
    steps = watch(model, optimizer, loader)
    with watch(other, torch.optim.SGD(other.parameters(), lr=0.1), loader) as outer:
        for x, y in steps:
            other(x)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            other(x)
    (forward,) = [phase for phase in steps.report().phases if phase.name == "forward"]
    assert forward.calls == pytest.approx(1)
    assert outer.report().num_steps == 0
    assert "_compiled_call_impl" not in vars(type(model))


def test_schedulers_do_not_complain() -> None:
    model, optimizer, loader = parts(6)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in train(model, optimizer, watch(model, optimizer, loader)):
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] < 0.01


def test_watching_nests() -> None:
    model, optimizer, loader = parts(10)
    with watch_everything() as everything:
        steps = watch(model, optimizer, loader)
        run(train(model, optimizer, steps))
    assert steps.report().num_steps == 10
    assert 8 <= everything.num_steps <= 10


def test_a_with_block_is_entered_once() -> None:
    model, optimizer, loader = parts(2)
    with watch(model, optimizer, loader) as steps, pytest.raises(TargetError, match="already in use"), steps:
        pass


def test_wrong_arguments_are_named() -> None:
    model, optimizer, loader = parts(1)
    with pytest.raises(TargetError, match=r"model must be a torch\.nn\.Module, or a list of such, not a DataLoader"):
        watch(loader, optimizer, model)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="optimizer must be"):
        watch(model, [], loader)
    with pytest.raises(TargetError, match="loader must be iterable, not an int"):
        watch(model, optimizer, 3)  # type: ignore[arg-type]


def test_other_threads_are_not_counted() -> None:
    model, optimizer, loader = parts(12)
    other, other_optimizer, other_loader = parts(12)
    steps = watch(model, optimizer, loader)
    for index, _ in enumerate(train(model, optimizer, steps)):
        if index == 5:
            thread = threading.Thread(target=lambda: run(train(other, other_optimizer, other_loader)))
            thread.start()
            thread.join()
    report = steps.report()
    (backward,) = [p for p in report.phases if p.name == "backward"]
    assert backward.calls == pytest.approx(1)


def test_an_optimiser_that_raises_once_does_not_stop_the_watching() -> None:
    model, optimizer, loader = parts(20)
    with watch_everything() as everything:
        for index, (x, y) in enumerate(loader):
            nn.functional.mse_loss(model(x), y).backward()
            lr = optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = "none" if index == 5 else lr
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                optimizer.step()
            optimizer.param_groups[0]["lr"] = lr
    assert 17 <= everything.num_steps <= 19


def test_wrappers_go_in_whatever_order_they_came() -> None:
    original = Tensor.item
    parts_of = [parts(4), parts(4)]
    first, second = (iter(watch(*p)) for p in parts_of)
    next(first)
    next(second)
    assert Tensor.item is not original
    first.close()  # type: ignore[attr-defined]
    second.close()  # type: ignore[attr-defined]
    assert Tensor.item is original
