"""How often a place runs in each unit of work: small sources of known frequency, by kind of control flow."""

import ast

import pytest

from whet_audit.constants import Constants
from whet_audit.finding import HotPath
from whet_audit.hot_paths import HotPaths
from whet_audit.project import Project
from whet_audit.source import Module
from whet_audit.type_inference import TypeInference

STEP = """
import torch

def train(model, loader, opt, args, verbose=False):
    first, total, on = True, None, False
    for step, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
{body}

def every_hundredth(step):
    return step % 100 == 0

def show(step, is_shown):
    if step == 0:
        return
    else:
        if every is None:
            return
        if step % every != 0:
            return
    here()
"""
FORWARD = """
import torch

class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask=None):
{body}
        return x
"""


def hot_path(source: str) -> HotPath | None:
    """What is found of the one call of `here`."""
    module = Module("train.py", source)
    project = Project([module])
    kinds = TypeInference(project)
    paths = HotPaths(project, kinds, Constants(project))
    calls = [call for call in module.nodes(ast.Call) if getattr(call.func, "id", "") == "here"]
    return paths.of(module, calls[0])


def of(template: str, body: str) -> HotPath:
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    found = hot_path(template.format(body=indented))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("body", "times"),
    [
        ("here()", 1),
        ("if step % 4 == 0:\n    here()", 0.25),
        ("if step % 4 != 0:\n    here()", 0.75),
        ("if step % 4:\n    continue\nhere()", 0.25),
        ("if loss > 3:\n    here()", 0.5),
        ("here() if loss > 3 else 0", 0.5),
        ("for k in range(6):\n    here()", 6),
        ("for k in range(6):\n    if k % 2 == 0:\n        here()", 3),
        ("[here() for k in (1, 2, 3)]", 3),
        ("for k in here():\n    pass", 1),
        ("while here():\n    pass", 2),
        ("for p in model.parameters():\n    here()", 100),
        ("for v in x.flatten():\n    here()", 100),
        ("for k, v in losses.items():\n    here()", 4),
        ("for k, v in reduced({'loss': loss}).items():\n    here()", 1),
        ("for k in range(len(x)):\n    here()", 8),
        ("for k in range(6):\n    if loss > k:\n        here()\n        break", 0.5),
        ("for k in range(6):\n    here()\n    break", 1),
        ("if torch.cuda.is_available():\n    here()", 0.99),
        ("if step > 500:\n    break\nhere()", 1),
        ("if x is None:\n    raise ValueError\nhere()", 1),
        ("assert loss > 0, loss\nhere()", 1),
        ("try:\n    here()\nexcept RuntimeError:\n    pass", 1),
        ("total = loss if total is None else here()", 0.99),
    ],
)
def test_times_a_step(body: str, times: float) -> None:
    hot = of(STEP, body)
    assert hot.guard == ""
    assert hot.times == pytest.approx(times)


@pytest.mark.parametrize(
    "body",
    [
        "if step % 100 == 0:\n    here()",
        "if step % args.every == 0:\n    here()",
        "if step % 100:\n    continue\nhere()",
        "if step % 100 == 0 and step:\n    here()",
        "log = (step + 1) % 100 == 0\nif log and args.main:\n    here()",
        "if every_hundredth(step):\n    here()",
        "if step == 0:\n    here()",
        "if step == len(loader) - 1:\n    here()",
        "if not step > 0:\n    here()",
        "if verbose:\n    here()",
        "if args.on and checker.should_validate(step):\n    here()",
        "if torch.isnan(loss):\n    here()",
        "if first:\n    first = False\n    here()",
        "total = here() if total is None else total + 1",
        "if loss > 3:\n    here()\n    break",
        "try:\n    model(x)\nexcept RuntimeError:\n    here()",
        "show(step, step % 100 == 0)\ndef closure():\n    pass",
        "continue\nhere()",
        "assert loss > 0, here()",
        "for k in range(6):\n    if loss > 9:\n        raise ValueError(here())",
    ],
)
def test_what_keeps_a_place_out_of_most_steps(body: str) -> None:
    assert of(STEP, body).guard != ""


def test_a_parameter_is_what_the_callers_give() -> None:
    source = STEP.replace("    if step == 0:", "    if is_shown:\n        here()\n    if step == 0:")
    assert hot_path(source.format(body="        show(step, step % 100 == 0)")).guard == "is_shown"  # type: ignore[union-attr]
    often = hot_path(source.format(body="        show(step, step % 2 == 0)"))
    assert often is not None
    assert (often.guard, often.times) == ("", 0.5)


def test_the_optimisers_step_is_the_unit_where_gradients_are_accumulated() -> None:
    source = STEP.replace(
        "        opt.step()\n", "        if (step + 1) % args.accum == 0:\n            opt.step()\n            here()\n"
    )
    hot = hot_path(source.format(body="        pass"))
    assert hot is not None
    assert (hot.guard, hot.times, hot.often) == ("", 1.0, "once an optimiser step")


@pytest.mark.parametrize(
    ("body", "is_seldom"),
    [
        ("if x.shape[-1] % 16 != 0:\n    raise ValueError\nhere()", False),
        ("if x.shape[-1] % 16 != 0:\n    here()", False),
        ("if x.shape[-1] % 16 != 0:\n    raise ValueError(here())", True),
        ("width = x.size(1)\nif width % 64 == 0:\n    here()", False),
        ("if self.table is None:\n    self.table = here()", True),
        ("if self.table is not None:\n    return self.table\nself.table = here()", True),
        ("if not hasattr(self, 'table'):\n    self.table = here()", True),
        ("if x.dtype not in self.tables:\n    self.tables[x.dtype] = here()", True),
        ("if not self.is_ready:\n    here()\n    self.is_ready = True", True),
        ("self.table = None\nif self.table is None:\n    self.table = here()", False),
        ("if mask is None:\n    mask = here()", False),
        ("for i in range(12):\n    if i == 0:\n        here()", False),
    ],
)
def test_a_forward_pass(body: str, is_seldom: bool) -> None:
    assert bool(of(FORWARD, body).guard) is is_seldom


def test_more_forward_passes_train_than_evaluate() -> None:
    assert of(FORWARD, "if self.training:\n    here()").times == 0.75
    assert of(FORWARD, "if not self.training:\n    here()").times == 0.25


def test_a_method_of_what_an_object_is_runs_as_often_as_its_caller() -> None:
    hot = hot_path(
        "import torch\nclass Scorer:\n    def predict(self, x):\n        here()\nclass Loop:\n    def __init__(self):\n"
        "        self.scorer = Scorer()\n    def run(self, model, loader, opt):\n        for x in loader:\n"
        "            loss = model(x).mean()\n            loss.backward()\n            opt.step()\n"
        "            self.scorer.predict(loss)\n"
    )
    assert hot is not None
    assert (hot.kind, hot.via, hot.times) == ("training loop", ("predict",), 1.0)


def test_a_denoising_loop_of_models_that_the_pipeline_was_given() -> None:
    hot = hot_path(
        "import torch\nclass Pipe:\n    def __init__(self, net, scheduler):\n"
        "        self.register_modules(net=net, scheduler=scheduler)\n    @torch.no_grad()\n"
        "    def __call__(self, prompt: torch.Tensor, num_steps: int = 28):\n        x = torch.randn(1, 4)\n"
        "        for t in self.scheduler.timesteps:\n            y = self.net(x, t, prompt)\n"
        "            x = self.scheduler.step(y, t, x)\n            here()\n"
    )
    assert hot is not None
    assert (hot.often, hot.assumes) == ("once a denoising step, about 28 a call", "num_steps=28, the default")


def test_the_loop_over_epochs_is_none_of_the_steps() -> None:
    source = STEP.replace("    for step, (x, y)", "    for epoch in range(3):\n     here()\n     for step, (x, y)")
    assert hot_path(source.format(body="        pass")) is None


OPTIONS = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--extra", action="store_true")
parser.add_argument("--full", action="store_false")
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()

class Net(torch.nn.Module):
    def __init__(self, up=False, down=True, table=None, kind="a", mixed=False, given=False):
        super().__init__()
        self.up, self.other = up, None
        self.is_up = up
        self.down = down
        self.table = table
        self.kind = kind
        self.mixed = mixed
        self.given = given
        self.plain = True
        self.later = False

    def start(self):
        self.later = True

    def helper(self, mask=None):
        if mask is not None:
            {helper}

    def forward(self, x: torch.Tensor, mask=None):
        self.helper()
        {forward}
        return x

class Fields(torch.nn.Module):
    seen: bool = False
    unseen: bool = False

    def forward(self, x: torch.Tensor):
        {fields}

Fields(seen=True)
net = Net(kind="b", mixed=args.unknown, given=True)
other = Net(kind="b", mixed=True, given=True)
net.set_from_outside = 1
"""


@pytest.mark.parametrize(
    ("test", "is_seldom"),
    [
        ("self.is_up", True),
        ("not self.is_up", False),
        ("self.down", False),
        ("not self.down", True),
        ("self.table is not None", True),
        ("self.table is None", False),
        ("self.kind == 'a'", True),  # all who make it say "b"
        ("self.kind == 'b'", False),
        ("self.mixed", False),  # some say so
        ("not self.given", True),
        ("not self.plain", True),
        ("self.later", False),
        ("self.other", True),
        ("mask is not None", False),  # a forward pass is given what its callers, who are not seen, have
        ("args.extra", True),
        ("args.full", False),
        ("args.clip > 0", True),
        ("args.clip == 0", False),
    ],
)
def test_an_option_is_what_it_is_by_default(test: str, is_seldom: bool) -> None:
    hot = hot_path(OPTIONS.format(fields="pass", helper="pass", forward=f"if {test}: here()"))
    assert hot is not None
    assert bool(hot.guard) is is_seldom


def test_a_parameter_that_no_caller_gives_has_its_default() -> None:
    hot = hot_path(OPTIONS.format(fields="pass", helper="here()", forward="pass"))
    assert hot is not None
    assert hot.guard == "mask is not None"


@pytest.mark.parametrize(("name", "is_seldom"), [("seen", False), ("unseen", True)])
def test_a_field_is_what_those_give_who_make_objects(name: str, is_seldom: bool) -> None:
    hot = hot_path(OPTIONS.format(fields=f"if self.{name}: here()", helper="pass", forward="pass"))
    assert hot is not None
    assert bool(hot.guard) is is_seldom


LAYERS = """
import torch

class Norm(torch.nn.Module):
    def __init__(self): super().__init__()
    def forward(self, x):
        here()
        return x

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Norm(), Norm()
    def forward(self, x):
        return self.second(self.first(x))

class Net(torch.nn.Module):
    def __init__(self, depth{default}):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(depth)])
"""


@pytest.mark.parametrize(("default", "layers", "assumes"), [("=40", 40, ""), ("", 24, "24 layers")])
def test_what_a_layer_does_counts_in_each_of_them(default: str, layers: int, assumes: str) -> None:
    hot = hot_path(LAYERS.format(default=default))
    assert hot is not None
    assert (hot.times, hot.layers, hot.assumes) == (layers, layers, assumes)
    assert hot.often == f"{layers} layers in each forward pass, about {layers} times"


def test_a_loop_for_what_somebody_types_is_no_step() -> None:
    source = (
        "import torch\ndef ask():\n    return input()\n@torch.no_grad()\ndef main(model: torch.nn.Module):\n"
        "    while True:\n        x = {}\n        model(x)\n        here()\n"
    )
    assert hot_path(source.format("ask()")) is None or hot_path(source.format("ask()")).kind == "inference function"  # type: ignore[union-attr]
    loop = hot_path(source.format("other()"))
    assert loop is not None
    assert loop.kind == "inference loop"


@pytest.mark.parametrize(
    ("base", "method", "is_hot"),
    [
        ("transformers.TrainerCallback", "on_step_end", True),
        ("transformers.Trainer", "compute_loss", True),
        ("mmengine.hooks.Hook", "after_train_iter", True),
        ("transformers.TrainerCallback", "on_train_end", False),
        ("mmcv.BaseModule", "train_step", False),  # of a framework whose runner may not be there
    ],
)
def test_methods_that_frameworks_call_in_each_step(base: str, method: str, is_hot: bool) -> None:
    package = base.partition(".")[0]
    hot = hot_path(f"import torch\nimport {package}\nclass Mine({base}):\n    def {method}(self, x):\n        here()\n")
    assert (hot is not None and hot.kind == "training step") is is_hot


INFERS = """
import torch

def answers(net: torch.nn.Module, rows):
    found = []
    for row in rows:
        found.append(net(row))
        here()
    return found

def run(net, rows, opt):
{body}
"""


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("    print(answers(net, rows))", "inference loop"),
        ("    torch.stack(answers(net, rows)).sum().backward()", None),  # what it computes is differentiated
        (
            "    return answers(net, rows)\n\ndef fit(net, rows, opt):\n    run(net, rows, opt)[0].backward()",
            "training step",
        ),
        ("    pass", None),  # who calls it is not in sight
    ],
)
def test_inference_is_what_nobody_differentiates(body: str, kind: str | None) -> None:
    main = "\n\nrun(torch.nn.Linear(2, 2), [], None)\n"
    hot = hot_path(INFERS.format(body=body) + main)
    assert (hot.kind if hot is not None else None) == kind


def test_a_demonstration_that_runs_once_is_no_training_step() -> None:
    source = (
        "import torch\ndef demo():\n    loss = torch.nn.Linear(2, 2)(torch.randn(2, 2)).mean()\n    loss.backward()\n"
        "    here()\n"
    )
    assert hot_path(source) is not None
    assert hot_path(f"{source}if __name__ == '__main__':\n    demo()\n") is None
    assert hot_path(f"{source}for _ in range(3):\n    demo()\n") is not None


def test_a_denoising_step_in_a_function_of_its_own() -> None:
    hot = hot_path(
        "import torch\nclass Pipe:\n    def move(self, x, y, t):\n        return self.scheduler.step(y, t, x)[0]\n"
        "    @torch.no_grad()\n    def __call__(self, net: torch.nn.Module, x, timesteps):\n"
        "        for t in timesteps:\n            both = [x]\n            y = net(both, t)\n"
        "            new = self.move(x, y, t)\n            x = new.squeeze(0)\n            here()\n"
    )
    assert hot is not None
    assert (hot.often, hot.assumes) == ("once a denoising step, about 30 a call", "30 denoising steps")


def test_names_that_a_star_imports_are_followed() -> None:
    logger = Module("misc/logger.py", "class Meter:\n    def update(self, **given):\n        here()\n", "misc.logger")
    misc = Module("misc/__init__.py", "from .logger import *\n", "misc", is_package=True)
    train = Module(
        "train.py",
        "import torch\nfrom misc import Meter\ndef train(model, loader, opt):\n    meter = Meter()\n"
        "    for x in loader:\n        model(x).mean().backward()\n        opt.step()\n        meter.update(loss=x)\n",
    )
    project = Project([logger, misc, train])
    paths = HotPaths(project, TypeInference(project), Constants(project))
    call = next(call for call in logger.nodes(ast.Call) if getattr(call.func, "id", "") == "here")
    hot = paths.of(logger, call)
    assert hot is not None
    assert (hot.kind, hot.via) == ("training loop", ("update",))
