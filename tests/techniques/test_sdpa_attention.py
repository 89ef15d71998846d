"""Fused attention equals attention written out in float64, in every form it is found in."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.errors import TargetError
from whet.measure.machine import Limits
from whet.profiling.model import Profile
from whet.profiling.model.layers import LayerCost
from whet.techniques.rewriting.attention_pattern import count_fused, find_attention
from whet.techniques.rewriting.graph import relative_error, trace, trace_original
from whet.techniques.structure import sdpa_attention
from whet.techniques.technique import Applies, Candidate, NoOptions, NotApplicable

B, N, T, S, H = 2, 3, 5, 7, 8
OPTIONS = NoOptions()


def _bool_mask() -> Tensor:
    mask = torch.zeros(B, 1, 1, S, dtype=torch.bool)
    mask[1, ..., 4:] = True
    return mask


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(H)).softmax(-1) @ v


def no_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(F.softmax(torch.matmul(q, k.mT), dim=3), v)


def scaled_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * H**-0.5) @ k.permute(0, 1, 3, 2)).softmax(-1) @ v


def scale_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / torch.sqrt(torch.tensor(float(H)))).softmax(-1) @ v


def temperature_per_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.linspace(0.1, 0.5, N, dtype=q.dtype).view(N, 1, 1) * (q @ k.mT)).softmax(-1) @ v


def added_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = _bool_mask().to(q.dtype) * -10_000.0
    return F.dropout((mask + q @ k.mT / math.sqrt(H)).softmax(-1), 0.1, training=False) @ v


def added_bias_and_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias_NTS = torch.linspace(-1, 1, N * T * S, dtype=q.dtype).view(N, T, S)
    scores = q @ k.mT * 0.3 + bias_NTS
    scores = scores.masked_fill(_bool_mask(), -torch.inf)
    return scores.softmax(-1, dtype=q.dtype).to(q.dtype) @ v


def two_fills(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    causal = torch.ones(T, S, dtype=torch.bool).triu(3)
    scores = (q @ k.mT).masked_fill(causal, -1e9)
    return scores.masked_fill(_bool_mask(), torch.finfo(q.dtype).min).softmax(-1) @ v


def filled_then_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.linspace(-1, 1, T * S, dtype=q.dtype).view(T, S)
    return ((q @ k.mT).masked_fill(_bool_mask(), -torch.inf) + bias).softmax(-1) @ v


def where_constant(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.ones(T, S, dtype=torch.bool).tril(3)
    scores = torch.where(keep, q @ k.mT, torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype))
    return scores.softmax(-1) @ v


def where_other_way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.where(_bool_mask(), -1e9, q @ k.mT).softmax(-1) @ v


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    scores /= math.sqrt(H)
    scores += _bool_mask().to(q.dtype) * -10_000.0
    return scores.softmax(-1) @ v


def einsum_heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(0.5).softmax(-1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def einsum_heads_inside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    weights = torch.einsum("bkhd, bqhd -> bhqk", k, q).softmax(-1)
    return torch.einsum("bkhd,bhqk->bqhd", v, weights)


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)


def folded_with_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    bias = torch.linspace(-1, 1, B * N * T * S, dtype=q.dtype).view(B * N, T, S)
    return torch.bmm(torch.baddbmm(bias, q, k.transpose(1, 2), alpha=0.5).softmax(-1), v)


def unfolded_for_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(B, N, T, S)
    scores = scores + _bool_mask().to(q.dtype) * -10_000.0
    return torch.bmm(scores.view(B * N, T, S).softmax(-1), v)


FORMS = [
    plain,
    no_scale,
    scaled_query,
    scale_tensor,
    temperature_per_head,
    added_mask,
    added_bias_and_mask,
    two_fills,
    filled_then_added,
    where_constant,
    where_other_way,
    in_place,
    einsum_heads_first,
    einsum_heads_inside,
    folded,
    folded_with_mask,
    unfolded_for_mask,
]


def causal_by_index(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention over keys and values of which the weights are wanted too: can't be fused."""
    weights = (q @ k.mT).softmax(-1)
    return weights @ v + weights.sum()


def mask_scaled_too(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.linspace(-1, 1, T * S, dtype=q.dtype).view(T, S)
    return ((q @ k.mT + bias) / math.sqrt(H)).softmax(-1) @ v


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def head_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT).softmax(-1) * torch.linspace(0, 1, N, dtype=q.dtype).view(N, 1, 1)) @ v


def small_fill(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(_bool_mask(), -1.0).softmax(-1) @ v


NOT_ATTENTION = [causal_by_index, mask_scaled_too, over_queries, head_mask, small_fill]


class Formula(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(q, k, v)


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(B, N, T, H), torch.randn(B, N, S, H), torch.randn(B, N, S, H)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_equals_float64(form, examined_of, machine) -> None:
    inputs = _inputs()
    examined = examined_of(Formula(form), inputs)
    assert isinstance(sdpa_attention.check(examined, machine, OPTIONS), Applies)
    tuned = sdpa_attention.apply(Candidate.original(examined), OPTIONS)
    (found,) = tuned.call(*inputs)
    wanted = form(*(x.double() for x in inputs))
    assert found.shape == wanted.shape
    assert relative_error([found], [wanted]) < 1e-5
    graph = trace(tuned.module, examined)
    assert count_fused(graph) == 1
    assert not [n for n in graph.graph.nodes if "softmax" in str(n.target)]


@pytest.mark.parametrize("form", NOT_ATTENTION, ids=lambda form: form.__name__)
def test_leaves_alone_what_is_not_attention(form, examined_of, machine) -> None:
    examined = examined_of(Formula(form), _inputs())
    assert sdpa_attention.check(examined, machine, OPTIONS) == NotApplicable("no softmax attention found")


def test_sizes_stay_free(examined_of) -> None:
    """The rewritten graph takes other lengths, as the original did."""
    q, k, v = _inputs()
    examined = examined_of(Formula(plain), (q, k, v), (q[:, :, :3], k[:, :, :6], v[:, :, :6]))
    tuned = sdpa_attention.apply(Candidate.original(examined), OPTIONS)
    q, k, v = q[:, :, :4], k[:, :, :5], v[:, :, :5]
    (found,) = tuned.call(q, k, v)
    assert relative_error([found], [plain(q.double(), k.double(), v.double())]) < 1e-5


def test_refuses_fused_attention(examined_of, machine) -> None:
    examined = examined_of(Formula(F.scaled_dot_product_attention), _inputs())
    verdict = sdpa_attention.check(examined, machine, OPTIONS)
    assert verdict == NotApplicable("the model already uses scaled_dot_product_attention")


def test_refuses_what_cannot_be_traced(examined_of, machine) -> None:
    def branching(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return plain(q, k, v) if q.sum() > 0 else q

    verdict = sdpa_attention.check(examined_of(Formula(branching), _inputs()), machine, OPTIONS)
    assert isinstance(verdict, NotApplicable)
    assert "torch.export cannot trace the model" in verdict.reason


def test_says_how_a_switched_model_answers_where_nothing_else_can_be_fused(examined_of) -> None:
    class Unlike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(_attn_implementation="eager")

        def set_attn_implementation(self, name: str) -> None:
            self.config._attn_implementation = name

        def forward(self, x: Tensor) -> Tensor:
            return x if self.config._attn_implementation == "eager" else 2 * x

    candidate = Candidate.original(examined_of(Unlike().eval(), torch.ones(2, 3)))
    with pytest.raises(TargetError, match="sdpa_attention changed the outputs by 1"):
        sdpa_attention.apply(candidate, OPTIONS)


def test_hugging_face_bert(examined_of, machine) -> None:
    """A real transformers model is switched, not rewritten, and agrees with its eager self."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.BertModel(config)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    examined = examined_of(model, {"input_ids": torch.randint(0, 50, (2, 9)), "attention_mask": mask})
    verdict = sdpa_attention.check(examined, machine, OPTIONS)
    assert verdict == Applies("BertModel computes eager attention")
    tuned = sdpa_attention.apply(Candidate.original(examined), OPTIONS)
    assert model.config._attn_implementation == "eager"
    assert count_fused(trace(tuned.module, examined)) == 2
    assert relative_error(tuned.call(*examined.flat_inputs[0]), examined.outputs[0]) < 1e-5


def test_hand_written_matches_in_hugging_face_eager(examined_of) -> None:
    """The graph pattern alone finds transformers' own eager attention too."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=8
    )
    config._attn_implementation = "eager"
    examined = examined_of(transformers.ViTModel(config), {"pixel_values": torch.randn(1, 3, 16, 16)})
    assert len(find_attention(trace_original(examined))) == 2


@pytest.mark.parametrize("softmax", ["attention", "attention.softmax"], ids=["a function", "a module"])
def test_the_bound_is_of_all_that_attention_does(softmax: str) -> None:
    """Its products run in the layer above a softmax that is a module of its own."""

    def cost(name: str, kind: str, seconds: float, *operators: str) -> LayerCost:
        return LayerCost(name, kind, 1, seconds, 1, 1, 1, num_operators=1, operators=operators)

    layers = [cost("mlp", "Linear", 6.0, "addmm")]
    if softmax == "attention":
        layers.append(cost("attention", "Attention", 4.0, "bmm", "_softmax"))
    else:
        layers += [cost("attention", "Attention", 3.0, "bmm"), cost(softmax, "Softmax", 1.0, "_softmax")]
    profile = Profile(total_s=10.0, layers=tuple(layers))
    bound = sdpa_attention.predict(profile, Limits(read_bandwidth=1.0), NoOptions())
    assert bound == pytest.approx(10 / 6)
