"""What is compiled for training, and that a forward which must stay as it is composes with it."""

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.utils
import torch.nn.functional as F
from torch import Tensor, nn

from whet.techniques.mechanisms.compiled import compile_in_place, compiled_parts
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.training import TRAINING_TABLE

# torch.compile itself looks at the gradient of a compiled block's input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
VOCABULARY, WIDTH = 1500, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Flat(nn.Module):
    """Blocks and head in one module, the loss outside."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.Sequential(Block(), Block())

    def forward(self, ids: Tensor) -> Tensor:
        return self.blocks(self.embedding(ids))


class WithLoss(nn.Module):
    """The loss inside of forward, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.head(self.inner(ids)).float()
        return F.cross_entropy(logits.view(-1, VOCABULARY), ids.view(-1))


@pytest.fixture(autouse=True)
def _counters() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def num_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def deferred(model: nn.Module) -> nn.Module:
    return applied(model, "chunked_loss")


def applied(model: nn.Module, name: str) -> nn.Module:
    parts = Parts(model, torch.optim.SGD(model.parameters(), lr=0.1), ())
    technique = TRAINING_TABLE[name]
    return technique.apply(parts, technique.options()).model


def test_a_sequential_is_compiled() -> None:
    """`nn.Module.compile` compiles nothing of it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    expected = model(x := torch.randn(3, 4))
    compile_in_place(model)
    torch.testing.assert_close(model(x), expected)
    assert num_graphs() == 1


def test_the_whole_model_where_nothing_must_stay() -> None:
    model = WithLoss()
    assert compiled_parts(model) == [model]


@pytest.mark.parametrize("sequences", [False, True])
def test_blocks_beside_a_head_that_stays(sequences: bool) -> None:
    """Equal blocks share one graph, so that many of them do not reach torch.compile's limit."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) if sequences else Block() for _ in range(12)]
    model = deferred(Flat(blocks))
    assert compiled_parts(model) == blocks
    compile_in_place(model)
    ids = torch.randint(VOCABULARY, (2, 5))
    F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1)).backward()
    assert num_graphs() == 1


def test_a_loss_within_forward_with_deferred_logits() -> None:
    torch.manual_seed(0)
    model = WithLoss().train()
    ids = torch.randint(VOCABULARY, (2, 7))
    model(ids).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    loss = float(model(ids).detach())
    model.zero_grad()
    deferred(model)
    assert compiled_parts(model) == [model.inner]
    compile_in_place(model)
    found = model(ids)
    found.backward()
    assert num_graphs() == 1
    assert float(found.detach()) == pytest.approx(loss, rel=1e-6)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-7)


def test_float16_with_its_scale_is_compiled_inside() -> None:
    model = applied(WithLoss(), "autocast_fp16")
    assert compiled_parts(model) == [model.inner], "the loss scale's forward stays as it is"


class Narrow(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


@pytest.mark.thorough
def test_many_blocks_of_different_shapes_are_all_compiled_beside_an_eager_head() -> None:
    blocks = [Narrow(width) for width in range(8, 8 + 3 * torch._dynamo.config.recompile_limit)]
    model = deferred(Flat(list(blocks)))
    compile_in_place(model)
    ids = torch.randint(0, VOCABULARY, (2, 6))
    F.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1)).backward()
    assert num_graphs() == len(blocks)
