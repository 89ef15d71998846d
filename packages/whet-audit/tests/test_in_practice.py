"""What runs in practice: options that nobody turns on, code that no step reaches, loops that only look like steps."""

import pytest

from whet_audit.collect import SourceFile
from whet_audit.constants import Constants
from whet_audit.engine import inspect_files
from whet_audit.finding import Confidence, HotPath
from whet_audit.hot_paths import HotPaths
from whet_audit.project import Project
from whet_audit.source import Module
from whet_audit.type_inference import TypeInference
from whet_audit.written_settings import WrittenSettings

NET = """
import torch

def scaled(x, by=None):
    if by is not None:
        there()
    return x

class Net(torch.nn.Module):
    def __init__(self, width, is_slow=False, kind="plain"):
        super().__init__()
        self.is_slow, self.kind = is_slow, kind
        self.is_simple = True

    def forward(self, x: torch.Tensor):
        if {test}:
            here()
        return scaled(x)
"""
TRAIN = """
import torch
from net import Net

def train(model, loader, opt):
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        opt.step()

train(Net(8{given}), [], None)
"""


def hot_path(sources: dict[str, str], settings: str = "", name: str = "here") -> HotPath | None:
    """What is found of the one call of a name."""
    modules = [Module(f"{file}.py", text, file) for file, text in sources.items()]
    project = Project(modules)
    paths = HotPaths(project, TypeInference(project), Constants(project), WrittenSettings([settings]))
    module, call = next(
        (module, call)
        for module in modules
        for call in module.top.calls + [one for function in module.functions for one in function.calls]
        if getattr(call.func, "id", "") == name
    )
    return paths.of(module, call)


def is_off(test: str, given: str = "", settings: str = "", more: str = "") -> bool:
    sources = {"net": NET.format(test=test), "train": TRAIN.format(given=given) + more}
    hot = hot_path(sources, settings)
    assert hot is not None
    return hot.guard != ""


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("self.is_slow", True),
        ("not self.is_slow", False),
        ("self.is_slow and x.sum() > 3", True),
        ("self.is_slow or x.sum() > 3", False),
        ("self.kind == 'fancy'", True),
        ("self.kind != 'fancy'", False),
        ("not self.is_simple", True),
        ("self.width", False),
    ],
)
def test_a_default_that_nobody_changes_decides(test: str, expected: bool) -> None:
    assert is_off(test) is expected


@pytest.mark.parametrize(
    ("given", "settings", "more"),
    [
        (", is_slow=True", "", ""),
        (", True", "", ""),
        (", is_slow=option", "", ""),
        (", **options", "is_slow: true", ""),
        ("", "model:\n  is_slow: True  # for tests", ""),
        ("", '{"is_slow": true}', ""),
        ("", "python train.py --is-slow", ""),
        ("", "", "\nmodel.is_slow = True\n"),
        ("", "", "\nclass Slow(Net):\n    def __init__(self):\n        super().__init__(8, is_slow=True)\n"),
        ("", "", "\nbuild('net', is_slow=True)\n"),
    ],
)
def test_a_default_that_somebody_changes_does_not(given: str, settings: str, more: str) -> None:
    assert not is_off("self.is_slow", given, settings, more)


def test_settings_that_say_the_same_as_the_default_change_nothing() -> None:
    assert is_off("self.is_slow", ", **options", "is_slow: false\n# is_slow: true")


def test_a_parameter_that_every_call_leaves_out() -> None:
    sources = {"net": NET.format(test="True"), "train": TRAIN.format(given="")}
    off = hot_path(sources, name="there")
    assert off is not None
    assert off.guard == "by is not None"
    sources["train"] += "\ndef other(x):\n    from net import scaled\n    return scaled(x, by=x.mean())\n"
    on = hot_path(sources, name="there")
    assert on is not None
    assert on.guard == ""


FIELDS = """
import torch
from dataclasses import dataclass

@dataclass
class Step:
    is_slow: bool = False

    def training_step(self, batch):
        if self.is_slow:
            here()
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("Step()", True),
        ("Step(is_slow=True)", False),
        ("step.is_slow, other = True, 3", False),
        ("def option(step, **given):\n    for name in given:\n        setattr(step, name, 1)", True),
    ],
)
def test_a_field_is_what_is_given_for_it(more: str, expected: bool) -> None:
    hot = hot_path({"step": FIELDS + more})
    assert hot is not None
    assert (hot.guard != "") is expected


def test_a_class_that_sets_attributes_by_name_decides_nothing() -> None:
    own = "    def __init__(self, **given):\n        for name in given:\n            setattr(self, name, given[name])\n"
    hot = hot_path({"step": FIELDS + own})
    assert hot is not None
    assert hot.guard == ""


@pytest.mark.parametrize(
    ("more", "expected"), [("", True), ("def turn_on():\n    global IS_SLOW\n    IS_SLOW = 1", False)]
)
def test_a_constant_of_a_module(more: str, expected: bool) -> None:
    hot = hot_path({"step": f"IS_SLOW = False\n{FIELDS.replace('self.is_slow', 'IS_SLOW')}{more}"})
    assert hot is not None
    assert (hot.guard != "") is expected


UNREACHED = """
import torch

class Head(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        here()
        return x
{more}
"""


@pytest.mark.parametrize(
    ("head", "more_of_train", "settings", "is_step"),
    [
        ("\nhead = Head()", "", "", False),
        ("\nhead = Head()", "\nimport head", "", True),
        ("\nhead = Head()", "", "_target_: head.Head", True),
        ("", "\nimport head", "", False),
        ("", "\nfrom head import Head", "", True),
    ],
)
def test_a_forward_pass_counts_where_a_step_reaches_it(
    head: str, more_of_train: str, settings: str, is_step: bool
) -> None:
    sources = {
        "net": NET.format(test="True").replace("here()", "pass"),
        "head": UNREACHED.format(more=head),
        "train": TRAIN.format(given="") + more_of_train,
    }
    hot = hot_path(sources, settings)
    assert hot is not None
    assert (hot.no_step == "") is is_step


EVALUATE = """
import torch

def evaluate(model, loader):
    with torch.no_grad():
        for x in loader:
            model(x)
            here()

def train(model, loader, opt):
    for x in loader:
        model(x).mean().backward()
        opt.step()

def main(model, loader, opt):
    for epoch in range(3):
        train(model, loader, opt)
{call}
"""


def test_an_evaluation_counts_where_a_training_comes_by_it() -> None:
    inside = hot_path({"run": EVALUATE.format(call="        evaluate(model, loader)")})
    after = hot_path({"run": EVALUATE.format(call="    evaluate(model, loader)")})
    assert inside is not None
    assert after is not None
    assert (inside.kind, inside.no_step) == ("inference loop", "")
    assert after.no_step == "once a batch, prompt or file, outside of training"


def test_what_is_no_step_is_perhaps_a_finding() -> None:
    def sureness(call: str) -> set[Confidence]:
        source = EVALUATE.format(call=call).replace("here()", "print(model(x.cuda()).mean().item())")
        found = inspect_files([SourceFile("run.py", source)], {"SYN101"}).findings
        return {finding.confidence for finding in found}

    assert sureness("    evaluate(model, loader)") == {Confidence.LOW}
    assert Confidence.LOW not in sureness("        evaluate(model, loader)")


SAMPLE = """
import torch

class Sampler:
    def __init__(self, net: torch.nn.Module):
        self.net = net

    def sample(self, x: torch.Tensor, sigmas):
        for sigma in sigmas:
            here()
            with torch.no_grad():
                new = torch.zeros_like(x)
                for part in x.chunk(2):
                    made = self.net({given}, sigma)
                    new[part] = made
            x = x + sigma * new
        return x
"""


def test_a_denoising_loop_that_runs_its_model_on_chunks() -> None:
    hot = hot_path({"sample": SAMPLE.format(given="x[part]")})
    assert hot is not None
    assert (hot.kind, hot.turns) == ("denoising loop", 30)
    assert hot_path({"sample": SAMPLE.format(given="sigma")}) is None  # each turn begins anew


@pytest.mark.parametrize(
    ("test", "is_seldom"),
    [
        ("accelerator.is_main_process", False),
        ("accelerator.sync_gradients", False),
        ("dist.get_rank() == 0", False),
        ("not is_main_process()", True),
        ("args.ignore_sanity_checks", False),
        ("not args.ignore_sanity_checks", True),
    ],
)
def test_what_the_main_process_does_holds_up_all(test: str, is_seldom: bool) -> None:
    body = f"        if {test}:\n            here()\n"
    hot = hot_path({"train": TRAIN.format(given="").replace("        opt.step()\n", f"        opt.step()\n{body}")})
    assert hot is not None
    assert (hot.guard != "") is is_seldom
    assert is_seldom or hot.times > 0.9


@pytest.mark.parametrize(("depth", "expected"), [(24, Confidence.HIGH), (2, Confidence.LOW)])
def test_a_list_read_in_each_of_many_layers(depth: int, expected: Confidence) -> None:
    source = (
        "import torch\n\nclass Layer(torch.nn.Module):\n    def forward(self, x: torch.Tensor):\n"
        "        return x.cuda().sum(0).tolist()\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n        self.layers = [Layer() for _ in range({depth})]\n"
    )
    found = inspect_files([SourceFile("net.py", source)], {"SYN104"}).findings
    assert [finding.confidence for finding in found] == [expected]
