"""Round trips of calls and outputs through a signature, and what it refuses."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor, nn

from whet.core.signature import (
    Argument,
    FlatModel,
    Outputs,
    PyTree,
    Signature,
    output_tensors,
    read_output,
    read_signature,
    split,
)
from whet.errors import InputsError, TargetError


class Color(StrEnum):
    RED = "red"


DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)

shapes = st.lists(st.integers(1, 4), max_size=3)
tensors = st.builds(lambda shape, dtype: torch.ones(shape).to(dtype), shapes, st.sampled_from(DTYPES))
names = st.text("abcdefgh_", min_size=1, max_size=6)
constants = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", ""]) | st.floats(allow_nan=False)
outputs = st.recursive(
    tensors | constants,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(names, inner),
    max_leaves=6,
)


def rebuilt_equals(found: Any, original: Any) -> bool:
    """Equal in structure, with the very same tensors; lists come back as tuples, mappings as Outputs."""
    if isinstance(original, Tensor):
        return found is original
    if isinstance(original, Mapping):
        return (
            isinstance(found, Outputs)
            and list(found) == list(original)
            and all(rebuilt_equals(found[key], original[key]) for key in original)
        )
    if isinstance(original, list | tuple):
        return isinstance(found, tuple) and len(found) == len(original) and all(map(rebuilt_equals, found, original))
    return type(found) is type(original) and found == original


def described(signature: Signature) -> str:
    with pytest.raises(InputsError) as caught:
        signature.flatten(("nothing",), {})
    return str(caught.value)


@given(outputs)
def test_outputs_come_back_as_they_were(output: Any) -> None:
    signature = Signature((), read_output(output))
    assert rebuilt_equals(signature.unflatten(output_tensors(output)), output)


@given(st.lists(tensors, max_size=3), st.dictionaries(names, tensors, max_size=3), st.dictionaries(names, constants))
def test_calls_are_flattened_in_order(args: list[Tensor], kwargs: dict[str, Tensor], fixed: dict[str, Any]) -> None:
    fixed = {name: value for name, value in fixed.items() if name not in kwargs}
    arguments = [Argument(None, str(t.dtype)[6:], tuple(t.shape)) for t in args]
    arguments += [Argument(name, str(t.dtype)[6:], tuple(t.shape)) for name, t in kwargs.items()]
    tensor, nodes = PyTree("tensor"), {name: PyTree("constant", value=value) for name, value in fixed.items()}
    named = dict.fromkeys(kwargs, tensor)
    signature = Signature(tuple(arguments), tensor, tuple(tensor for _ in args), {**named, **nodes})
    expected = [*args, *kwargs.values()]
    turned_around = dict(reversed(({**kwargs, **fixed}).items()))
    for given_kwargs in (kwargs, {**kwargs, **fixed}, turned_around):
        flat = signature.flatten(tuple(args), given_kwargs)
        assert len(flat) == len(expected)
        assert all(a is b for a, b in zip(flat, expected, strict=True))


@given(st.lists(tensors, min_size=1, max_size=3), outputs)
def test_a_signature_survives_json(args: list[Tensor], output: Any) -> None:
    adapter = TypeAdapter(Signature)
    signature = read_signature([tuple(args)], output)
    text = json.dumps(adapter.dump_python(signature, mode="json"))
    again = adapter.validate_python(json.loads(text))
    assert again == signature
    assert read_types(again.output) == read_types(signature.output)


def read_types(output: PyTree) -> list[type]:
    """The types of the constants: 1, 1.0 and True are equal and not the same."""
    return [type(output.value), *(t for item in output.items for t in read_types(item))]


def test_a_batch_is_a_tensor_a_sequence_or_a_mapping() -> None:
    x = torch.zeros(2)
    assert split(x) == ((x,), {})
    assert split([x, x]) == ((x, x), {})
    assert split(OrderedDict(a=x)) == ((), {"a": x})
    with pytest.raises(InputsError, match="not set"):
        split({1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "kwargs", "given"),
    [
        ((), {}, "called with ()"),
        ((torch.zeros(2, 3),), {}, "called with (float32[2, 3])"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {}, "float32[2, 3], float32[2, 3])"),
        ((torch.zeros(2, 3), torch.zeros(1)), {"mask": torch.ones(2)}, "float32[1], mask: float32[2]"),
        ((torch.zeros(3, 2),), {"mask": torch.ones(2)}, "float32[3, 2]"),
        ((torch.zeros(2, 3, 1),), {"mask": torch.ones(2)}, "float32[2, 3, 1]"),
        ((torch.zeros(2, 3).double(),), {"mask": torch.ones(2)}, "float64[2, 3]"),
        ((torch.zeros(2, 3),), {"mask": None}, "mask=None"),
        ((torch.zeros(2, 3),), {"mask": torch.ones(2), "other": torch.ones(1)}, "other: float32[1]"),
        ((torch.zeros(2, 3),), {"mask": torch.ones(2), "other": 1}, "other=1"),
        ((torch.zeros(2, 3),), {"mask": torch.ones(2), "scale": 3.0}, "scale=3.0"),
        ((torch.zeros(2, 3),), {"mask": torch.ones(2), "scale": torch.ones(2)}, "scale: float32[2]"),
        (([1, 2],), {"mask": torch.ones(2)}, "called with ([1, 2], mask: float32[2])"),
        (({1},), {"mask": torch.ones(2)}, "positional: set"),
        ((), {"x": torch.zeros(2, 3), "mask": torch.ones(2)}, "x: float32[2, 3]"),
    ],
)
def test_other_calls_are_refused_with_both_sides_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], given: str
) -> None:
    taken = (Argument(None, "float32", (2, 3)), Argument("mask", "float32", (2,)))
    tensor = PyTree("tensor")
    signature = Signature(taken, tensor, (tensor,), {"mask": tensor, "scale": PyTree("constant", value=2.0)})
    with pytest.raises(InputsError) as caught:
        signature.flatten(args, kwargs)
    assert str(caught.value).startswith("this model takes (float32[2, 3], mask: float32[2], scale=2.0) but was called")
    assert given in str(caught.value)


def test_sizes_that_differ_between_batches_are_free() -> None:
    x = torch.zeros
    signature = read_signature([(x(2, 3), x(5, 2)), (x(4, 3), x(5, 4))], x(1), seen=[(x(2, 3), x(6, 2))])
    assert [a.shape for a in signature.inputs] == [(None, 3), (None, None)]
    assert signature.is_dynamic
    assert signature.dynamic_shapes is not None
    assert [set(free) for free in signature.dynamic_shapes] == [{0}, {0, 1}]
    assert len(signature.flatten((x(7, 3), x(8, 9)), {})) == 2
    with pytest.raises(InputsError, match=r"float32\[any, 3\], float32\[any, any\]"):
        signature.flatten((x(7, 4), x(8, 9)), {})


def test_fixed_sizes_are_not_dynamic() -> None:
    signature = read_signature([torch.zeros(2, 3), torch.ones(2, 3)], torch.zeros(1))
    assert signature.inputs == (Argument(None, "float32", (2, 3)),)
    assert not signature.is_dynamic
    assert signature.dynamic_shapes is None


def test_keywords_may_come_in_any_order() -> None:
    one = {"ids": torch.zeros(2, 3), "mask": torch.ones(2)}
    other = {"mask": torch.ones(4), "ids": torch.zeros(4, 3)}
    signature = read_signature([one, other], torch.zeros(1))
    assert [(a.name, a.shape) for a in signature.inputs] == [("ids", (None, 3)), ("mask", (None,))]


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(2)},
        {"x": torch.zeros(2, 3), "y": torch.zeros(1), "flag": True},
        {"y": torch.zeros(2, 3), "flag": True},
        {"x": torch.zeros(2, 3, dtype=torch.int64), "flag": True},
        {"x": torch.zeros(2, 3, 1), "flag": True},
        {"x": torch.zeros(2, 3), "flag": False},
        {"x": torch.zeros(2, 3)},
        torch.zeros(2, 3),
    ],
)
@pytest.mark.parametrize("where", ["batches", "seen"])
def test_batches_of_different_kinds_are_refused(other: Any, where: str) -> None:
    first = {"x": torch.zeros(2, 3), "flag": True}
    with pytest.raises(InputsError, match=r"different kinds: \(x: float32\[2, 3\], flag=True\) and"):
        read_signature([first, *([other] if where == "batches" else [])], None, seen=[other] if where == "seen" else [])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((), "no tensor"),
        ({"flag": True}, "no tensor"),
        ((torch.zeros(1), {3}), "input 1 is a set; whet takes tensors, constants"),
        ((torch.zeros(1), torch.float16), "input 1 is a dtype"),
        ((torch.zeros(1), Color.RED), "input 1 is a Color"),
        ({"x": torch.zeros(1), "cache": [torch.zeros(1), object()]}, r"input cache\[1\] is an object"),
        ({"x": torch.zeros(1), "cache": {3: torch.zeros(1)}}, "input cache is a dict whose keys are not all strings"),
    ],
)
def test_batches_of_anything_but_tensors_are_refused(batch: Any, message: str) -> None:
    with pytest.raises(InputsError, match=message):
        read_signature([batch], torch.zeros(1))


def test_outputs_of_anything_else_are_refused() -> None:
    with pytest.raises(TargetError, match="returns a set"):
        read_output({torch.zeros(1)})
    with pytest.raises(TargetError, match="returns an object"):
        read_output({"a": [object()]})


def test_outputs_are_had_by_name_by_position_and_as_attributes() -> None:
    found = Outputs(logits=1, hidden=2, items=3)
    assert (found["logits"], found.hidden, found[0], found[-1], found[1:]) == (1, 2, 1, 3, (2, 3))
    assert dict(found) == {"logits": 1, "hidden": 2, "items": 3}
    with pytest.raises(AttributeError, match="other"):
        _ = found.other
    with pytest.raises(KeyError):
        found["other"]
    with pytest.raises(IndexError):
        found[3]


class Mixed(nn.Module):
    """Takes a tensor by position and the rest by name, gives a nest."""

    def forward(self, x: Tensor, *, y: Tensor, scale: float = 1.0) -> dict[str, Any]:
        return {"sum": x + scale * y, "more": (x - y, "text", [x * y])}


def test_a_flat_model_gives_what_the_model_gives() -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    model = Mixed()
    expected = model(x, y=y, scale=3.0)
    arguments = (Argument(None, "float32", (2, 3)), Argument("y", "float32", (2, 3)))
    tensor = PyTree("tensor")
    named = {"y": tensor, "scale": PyTree("constant", value=3.0)}
    signature = Signature(arguments, read_output(expected), (tensor,), named)
    flat = FlatModel(model, signature)(*signature.flatten((x,), {"y": y}))
    assert len(flat) == 3
    found = signature.unflatten(flat)
    torch.testing.assert_close(found.sum, x + 3 * y)
    torch.testing.assert_close(found["more"][0], x - y)
    assert found.more[1] == "text"
    torch.testing.assert_close(found[1][2][0], x * y)


def test_a_hugging_face_output_keeps_its_names() -> None:
    output = pytest.importorskip("transformers.modeling_outputs").BaseModelOutputWithPooling(
        last_hidden_state=torch.ones(1, 2, 3), pooler_output=torch.ones(1, 3)
    )
    signature = Signature((), read_output(output))
    found = signature.unflatten(output_tensors(output))
    assert found.last_hidden_state is output.last_hidden_state
    assert found[1] is output.pooler_output


def test_the_message_shows_free_dimensions_and_constants() -> None:
    named = {"ids": PyTree("tensor"), "return_dict": PyTree("constant", value=True)}
    signature = Signature((Argument("ids", "int64", (None, 8)),), PyTree("tensor"), kwargs=named)
    assert str(signature) == "(ids: int64[any, 8], return_dict=True)"
    assert described(signature) == f"this model takes {signature} but was called with ('nothing')"


class Found(NamedTuple):
    logits: Tensor
    boxes: tuple[Tensor, Tensor]


def test_a_named_tuple_keeps_its_names_and_is_taken_apart_as_one() -> None:
    given = Found(torch.zeros(1), (torch.ones(1), torch.ones(2)))
    x = torch.zeros(3)
    signature = read_signature([x], given)
    found = signature.unflatten(output_tensors(given))
    assert found.logits is given.logits
    assert found.boxes[1] is given.boxes[1]
    logits, (first, _) = found
    assert logits is given.logits and first is given.boxes[0]
    assert read_output(found) == read_output(given) != read_output(tuple(given))


@dataclass
class Options:
    weight: Tensor
    scale: float = 1.0


class Nested(nn.Module):
    """Takes every kind of container, and minds their classes."""

    def forward(self, x: Tensor, pair: Any, more: Any = None, *, options: Any, nothing: Any = None) -> Any:
        assert isinstance(pair, tuple) and isinstance(more, list) and isinstance(options, Options) and nothing is None
        (a, found), b = pair, more[1]["b"]
        return x + a * found.logits + b * more[0] + options.weight * options.scale


def nested(*, number: Any = 2, scale: Any = 0.5) -> tuple[tuple[Any, ...], dict[str, Any]]:
    t = [torch.full((3,), float(i)) for i in range(6)]
    more = [number, {"b": t[3], "none": None}]
    return (t[0], (t[1], Found(t[2], (t[4], t[4]))), more), {"options": Options(t[5], scale), "nothing": None}


def nested_signature() -> Signature:
    args, kwargs = nested()
    named = dict(zip(("x", "pair", "more"), args, strict=True)) | kwargs
    return read_signature([named], torch.zeros(1))


def test_nested_containers_and_constants_reach_the_model_as_they_were() -> None:
    args, kwargs = nested()
    named = dict(zip(("x", "pair", "more"), args, strict=True)) | kwargs
    adapter = TypeAdapter(Signature)
    signature = adapter.validate_python(json.loads(json.dumps(adapter.dump_python(nested_signature(), mode="json"))))
    flat = signature.flatten((), named)
    assert [a.name for a in signature.inputs][:3] == ["x", "pair[0]", "pair[1]"]
    assert torch.equal(FlatModel(Nested(), signature)(*flat)[0], Nested()(*args, **kwargs))
    by_fields = {**named, "options": {"scale": 0.5, "weight": kwargs["options"].weight}}
    assert all(map(torch.equal, signature.flatten((), by_fields), flat))


@pytest.mark.parametrize(
    ("change", "given"),
    [
        ({"nothing": 0}, "nothing=0"),
        ({"nothing": torch.zeros(3)}, "nothing: float32[3]"),
        ({"x": None}, "x=None"),
        ({"more": nested(number=True)[0][2]}, "more: [True,"),
        ({"more": nested(number=2.0)[0][2]}, "more: [2.0,"),
        ({"more": tuple(nested()[0][2])}, "more: (2,"),
        ({"more": [2, {"b": torch.ones(3)}]}, "more: [2, {b: float32[3]}]"),
        ({"more": [2, {"b": torch.ones(3), "none": None, "other": None}]}, "other: None"),
        ({"pair": nested()[0][1][:1]}, "pair: (float32[3])"),
        ({"pair": (torch.ones(3), tuple(nested()[0][1][1]))}, "pair: (float32[3], (float32[3],"),
        ({"options": Options(torch.ones(3), -0.5)}, "options: Options(weight: float32[3], scale: -0.5)"),
        ({"options": Options(torch.ones(4), 0.5)}, "options: Options(weight: float32[4]"),
    ],
)
def test_another_value_or_structure_is_never_taken(change: dict[str, Any], given: str) -> None:
    args, kwargs = nested()
    named = dict(zip(("x", "pair", "more"), args, strict=True)) | kwargs | change
    with pytest.raises(InputsError) as caught:
        nested_signature().flatten((), named)
    assert given in str(caught.value).partition("but was called with")[2]


def test_constants_are_told_apart_by_type_and_sign() -> None:
    x = torch.zeros(1)
    for value, others in [(1, (True, 1.0, None, "1")), (0.0, (-0.0, 0, False)), (float("nan"), (0.0,)), (None, (0,))]:
        signature = read_signature([(x, value)], x)
        assert signature.flatten((x, value), {}) == (x,) == signature.flatten((x,), {})
        for other in others:
            with pytest.raises(InputsError, match="but was called with"):
                signature.flatten((x, other), {})


@pytest.mark.parametrize(("shape", "is_said"), [((2, 4), True), ((3, 3), False), ((2, 3, 1), False)])
def test_another_size_says_how_to_free_it(shape: tuple[int, ...], is_said: bool) -> None:
    signature = read_signature([torch.ones(2, 3)], torch.ones(2))
    with pytest.raises(InputsError) as caught:
        signature.flatten([torch.ones(shape)], {})
    assert ("; a size is free where the batches" in str(caught.value)) == is_said
    assert read_signature([torch.ones(2, 3), torch.ones(2, 4)], torch.ones(2)).flatten([torch.ones(2, 5)], {})
