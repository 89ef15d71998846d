"""Small graphs are drawn from operators that runtimes compute differently: every backend is right, or refuses."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import whet
from whet.core.recipe import Recipe, Step
from whet.errors import WhetError

Operator = Callable[[Tensor, Tensor, Tensor], Tensor]

# Each takes integers [4, 6], a mask [4, 6] and floats [4, 6, 8], and returns integers [4, 6].
ON_INTEGERS: tuple[Operator, ...] = (
    lambda i, m, x: i // 3,
    lambda i, m, x: i % -7,
    lambda i, m, x: torch.div(i, 5, rounding_mode="trunc"),
    lambda i, m, x: torch.fmod(i, 4) - 2,
    lambda i, m, x: (i.to(torch.uint8) - 10).long(),
    lambda i, m, x: (i.to(torch.int8) * 9).long(),
    lambda i, m, x: (i * 2654435761) % 97,
    lambda i, m, x: i * m - i.flip(1),
    lambda i, m, x: m.cumsum(-1) - 1,
    lambda i, m, x: (i & 6).float().topk(6)[1],
    lambda i, m, x: x.sum(-1).argsort(-1, stable=True),
    lambda i, m, x: x.mean(-1).round().clamp(-3, 3).topk(6)[1],
    lambda i, m, x: torch.where(m > 0, i, -i),
    lambda i, m, x: i.clamp(-5, 5) ** 2,
)

STEPS = {
    "openvino": Step(technique="openvino", options={"precision": "f32"}),
    "onnxruntime": Step(technique="onnxruntime", options={"precision": "f32"}),
    "inductor": Step(technique="inductor"),
    "native": Step(technique="native", options={"precision": "f32"}),
    "program": Step(technique="sdpa_attention"),
}


class Drawn(nn.Module):
    """Compute integers by operators one after another, look a few of them up, and attend under the mask."""

    def __init__(self, operators: list[Operator], *, is_added: bool, by_hand: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.operators, self.is_added, self.by_hand = operators, is_added, by_hand
        self.table, self.linear = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, i: Tensor, m: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        for operator in self.operators:
            i = operator(i, m, x)
        q = self.linear(x + self.table(i.remainder(11)))[:, None]
        allowed = torch.ones(6, 6, dtype=torch.bool).tril() & m[:, None, None].bool()
        if self.by_hand:
            return i, (q @ q.mT).masked_fill(~allowed, -1e9).softmax(-1) @ q
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf) if self.is_added else allowed
        return i, nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def inputs_of(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    integers = torch.randint(0, 40, (4, 6), generator=generator)
    return integers, torch.ones(4, 6, dtype=torch.long), torch.randn(4, 6, 8, generator=generator)


def others() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Inputs as a user of the model might give them: of other signs and sizes, padded, with ties."""
    integers, mask, floats = inputs_of(1)
    left, right = mask.clone(), mask.clone()
    for row, num in enumerate((0, 2, 5, 6)):
        left[row, :num] = 0
        right[row, 6 - num :] = 0
    return [
        (integers, mask, floats),
        (-integers - 1, left, floats * 3),
        (integers * 7 - 60, right, floats.round()),
        (integers * 2**34, left, floats),
        (integers % 2, right, torch.zeros_like(floats)),
    ]


def check(runtime: str, model: Drawn) -> None:
    """Check that what a recipe makes of the model is right for other inputs, or refused by a message of whet's."""
    step = STEPS[runtime]
    try:
        tuned = whet.apply(Recipe(steps=(step,)), model.eval(), [inputs_of(0)])
    except WhetError:
        return
    for inputs in others():
        try:
            found = tuned(*inputs)
        except WhetError:
            continue
        with torch.no_grad():
            wanted = model(*inputs)
        torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0)
        keeps = wanted[1].isfinite()
        torch.testing.assert_close(found[1][keeps], wanted[1][keeps], rtol=1e-3, atol=1e-4)


graphs = st.builds(
    Drawn, st.lists(st.sampled_from(ON_INTEGERS), min_size=1, max_size=3), is_added=st.booleans(), by_hand=st.booleans()
)
quietly = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime", "native"])
@settings(quietly, max_examples=3)
@given(model=graphs)
def test_a_drawn_graph_is_right_or_refused(runtime: str, model: Drawn) -> None:
    pytest.importorskip("torch" if runtime == "native" else runtime)
    check(runtime, model)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("runtime", STEPS)
@settings(quietly, max_examples=60)
@given(model=graphs)
def test_many_drawn_graphs_are_right_or_refused(runtime: str, model: Drawn) -> None:
    check(runtime, model)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", STEPS)
@pytest.mark.parametrize("operator", ON_INTEGERS)
def test_each_operator_is_right_or_refused(runtime: str, operator: Operator) -> None:
    check(runtime, Drawn([operator], is_added=False, by_hand=False))
