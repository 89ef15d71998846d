"""A saved model equals the original on inputs that were not seen, or its technique is refused."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whet
from whet.core.recipe import Recipe, Step
from whet.errors import ArtefactError, RecipeRefused, TargetError

F32 = {"precision": "f32"}


class Beside(nn.Module):
    """Return what a function makes of the inputs, beside a layer of floats."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.linear = nn.Linear(8, 8)

    def forward(self, *inputs: Tensor) -> tuple[Any, Tensor]:
        return self.function(*inputs[:-1]), self.linear(inputs[-1])


class Attends(nn.Module):
    """Attend under a mask in one layer, with the operator of torch or by hand."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.qkv, self.attend = nn.Embedding(50, 16), nn.Linear(16, 48), attend

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.table(ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        length = ids.shape[1]
        allowed = torch.ones(length, length, dtype=torch.bool).tril() & mask[:, None, None, :].bool()
        return x + self.attend(q, k, v, allowed).transpose(1, 2).flatten(2)


def fused(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def fused_with_infinity(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    added = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added)


def filled_by_hand(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(~allowed, -1e9).softmax(-1) @ v


def applied(technique: str, options: dict[str, Any], model: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    return whet.apply(Recipe(steps=(Step(technique=technique, options=options),)), model.eval(), [inputs])


def ids_and_mask(seed: int, lengths: Sequence[int] = (9, 9, 9, 9)) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(seed))
    return ids, torch.stack([(torch.arange(9) >= 9 - length).long() for length in lengths])


@pytest.mark.parametrize("attend", [fused, fused_with_infinity, filled_by_hand])
def test_openvino_answers_left_padded_texts_and_empty_rows_as_the_model_does(attend: Callable[..., Tensor]) -> None:
    pytest.importorskip("openvino")
    model = Attends(attend)
    tuned = applied("openvino", F32, model, ids_and_mask(0))
    for lengths in ((9, 9, 9, 9), (9, 4, 1, 0), (0, 0, 2, 7)):
        inputs = ids_and_mask(1, lengths)
        torch.testing.assert_close(tuned(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


def test_fused_attention_answers_rows_without_a_key_as_attention_by_hand_does() -> None:
    model = Attends(filled_by_hand)
    tuned = applied("sdpa_attention", {}, model, ids_and_mask(0))
    inputs = ids_and_mask(1, (9, 4, 1, 0))
    torch.testing.assert_close(tuned(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def integers(i: Tensor) -> tuple[Tensor, ...]:
    return (
        i // 4,
        i.clone().floor_divide_(-3),
        i % 5,
        i % -5,
        7 % (i.abs() + 1),
        torch.fmod(i, 4),
        torch.div(i, 3, rounding_mode="trunc"),
        i.to(torch.uint8) * 7 - 10,
        (i.to(torch.int8) + 100).to(torch.uint8),
        i.to(torch.int16) * 1000,
        (i * 1.5).to(torch.uint8),
        i * i,
        i.cumsum(-1),
    )


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_runtimes_compute_integers_as_torch_does_or_refuse_them(runtime: str) -> None:
    pytest.importorskip(runtime)
    generator = torch.Generator().manual_seed(0)
    seen, x = torch.randint(0, 50, (4, 6), generator=generator), torch.rand(4, 8, generator=generator)
    model = Beside(integers)
    tuned = applied(runtime, F32, model, (seen, x))
    others = (seen, -seen - 3, seen.flip(0))
    for other in others:
        torch.testing.assert_close(tuned(other, x)[0], model(other, x)[0], rtol=0, atol=0)
    large = seen * 2**33 + 7
    if runtime == "openvino":
        with pytest.raises(ArtefactError, match=r"holds only where the largest value of input 0 <= .* too few bits"):
            tuned(large, x)
    else:
        found, wanted = tuned(large, x)[0], model(large, x)[0]
        torch.testing.assert_close(found[6], wanted[6], rtol=0, atol=0)


def test_openvino_refuses_a_product_that_32_bits_do_not_hold_by_its_name() -> None:
    pytest.importorskip("openvino")
    with pytest.raises(TargetError, match=r"OpenVINO computes integers in 32 bits, and aten\.mul\.Tensor overflows"):
        applied(
            "openvino", F32, Beside(lambda i: (i * 2654435761) % 97), (torch.arange(24).view(4, 6), torch.rand(4, 8))
        )


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_an_order_of_equal_values_that_is_not_torchs_is_refused_by_name(runtime: str) -> None:
    pytest.importorskip(runtime)
    scores = torch.randperm(40, generator=torch.Generator().manual_seed(0)).view(4, 10).float()
    model = Beside(lambda scores: scores.topk(3)[1])
    with pytest.raises(RecipeRefused, match=r"with floats rounded .*output 0 .*aten\.topk"):
        applied(runtime, F32, model, (scores, torch.rand(4, 8)))


def test_openvino_takes_an_argument_that_the_model_does_not_read() -> None:
    pytest.importorskip("openvino")
    model = Beside(lambda unused, x: x + 1)
    unused, x, y = torch.zeros(3, 2, dtype=torch.long), torch.rand(3, 2), torch.rand(3, 8)
    torch.testing.assert_close(applied("openvino", F32, model, (unused, x, y))(unused, x, y), model(unused, x, y))


def test_an_applied_recipe_takes_other_batch_sizes() -> None:
    model = nn.Linear(8, 4)
    tuned = applied("threads", {"num_threads": 1}, model, (torch.rand(3, 8),))
    torch.testing.assert_close(tuned(torch.ones(7, 8)), model(torch.ones(7, 8)))


def test_a_graph_that_onnxruntime_rejects_is_not_called_damaged() -> None:
    pytest.importorskip("onnxruntime")
    model = Beside(lambda x: torch.sin(x.bfloat16()).float())
    with pytest.raises(TargetError, match="ONNX Runtime rejects the graph") as error:
        applied("onnxruntime", F32, model, (torch.rand(4, 8), torch.rand(4, 8)))
    assert "damaged" not in str(error.value)
