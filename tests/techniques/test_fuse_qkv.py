"""Fused projections: the same outputs, fewer products, not a byte more."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.techniques.rewriting.graph import relative_error
from whet.techniques.structure import fuse_qkv, sdpa_attention
from whet.techniques.technique import Applies, Candidate, NoOptions, NotApplicable

OPTIONS = NoOptions()


class Projections(nn.Module):
    """Query with bias, key without, value of another width, and a gated MLP that reads what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 12)
        self.gate, self.up = nn.Linear(12, 16, bias=False), nn.Linear(12, 16, bias=False)
        self.down = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.down(F.silu(self.gate(mixed)) * self.up(mixed))


def test_equals_float64(examined_of, machine) -> None:
    torch.manual_seed(0)
    model, x = Projections(), torch.randn(2, 5, 8)
    examined = examined_of(model, x)
    assert fuse_qkv.check(examined, machine, OPTIONS) == Applies("5 linear layers become 2")
    tuned = fuse_qkv.apply(Candidate.original(examined), OPTIONS)
    assert relative_error(tuned.call(x), [copy.deepcopy(model).double()(x.double())]) < 1e-5
    names = {name: tuple(m.weight.shape) for name, m in tuned.module.named_modules() if isinstance(m, nn.Linear)}
    assert names == {
        "body.model.query_key_value": (28, 8),
        "body.model.gate_up": (32, 12),
        "body.model.down": (4, 16),
    }


def test_size_does_not_grow(examined_of) -> None:
    model = Projections()
    tuned = fuse_qkv.apply(Candidate.original(examined_of(model, torch.randn(2, 5, 8))), OPTIONS)
    num_zeros = model.key.out_features  # the key's bias, which was not there
    assert sum(p.numel() for p in tuned.module.parameters()) == sum(p.numel() for p in model.parameters()) + num_zeros


def test_views_of_the_parts(examined_of) -> None:
    """A part is a slice of the wide output; code that calls view on it still works."""

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x).view(-1) + self.b(x).view(-1)

    x = torch.randn(4, 6)
    examined = examined_of(Viewed(), x)
    assert relative_error(fuse_qkv.apply(Candidate.original(examined), OPTIONS).call(x), examined.outputs[0]) < 1e-6


class Twice(nn.Module):
    """The same layer twice, on the same input: there is nothing to gain from a second copy of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.layer(x)


class Between(nn.Module):
    """The input is changed in place between the two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        a = self.a(x)
        x.mul_(2)
        return a + self.b(x)


@pytest.mark.parametrize(
    "model", [Twice(), Between(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))], ids=["twice", "between", "in_a_row"]
)
def test_refuses(model, examined_of, machine) -> None:
    verdict = fuse_qkv.check(examined_of(model, torch.randn(2, 4)), machine, OPTIONS)
    assert verdict == NotApplicable("no two linear layers read the same input")


def test_tied_weights_stay_tied(examined_of) -> None:
    """An output layer that shares the embedding's weight: traced and fused, it is stored once."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            return self.head(self.a(x) * self.b(x))

    model, ids = Tied(), torch.randint(0, 11, (2, 3))
    examined = examined_of(model, ids)
    tuned = fuse_qkv.apply(Candidate.original(examined), OPTIONS)
    assert relative_error(tuned.call(ids), examined.outputs[0]) < 1e-6
    assert sum(p.numel() for p in tuned.module.parameters()) == sum(p.numel() for p in model.parameters())


def test_after_another_rewrite(examined_of) -> None:
    """What is a graph already can be rewritten again; one layer of the reference encoder has 6 linears, then 4."""
    models = pytest.importorskip("whet.models.encoder")
    config = models.EncoderConfig(vocab_size=20, max_tokens=8, width=16, num_layers=1, num_heads=2, mlp_width=32)
    ids = torch.randint(0, 20, (2, 6))
    examined = examined_of(models.Encoder(config), ids)
    fused = fuse_qkv.apply(sdpa_attention.apply(Candidate.original(examined), NoOptions()), OPTIONS)
    linears = [m for m in fused.module.modules() if isinstance(m, nn.Linear)]
    assert len(linears) == 1 + 1 + 2 + 1
    assert relative_error(fused.call(ids), examined.outputs[0]) < 1e-5
