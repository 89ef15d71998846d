"""The parser of the binary tensor data extension under any input: it gives back what was sent, or refuses with 400."""

import asyncio
import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from whet.server.artefacts.tensor_specs import DATATYPES, TensorSpec
from whet.server.http.errors import ApiError
from whet.server.http.tensors import read_inference, write_inference

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits of any type, NaNs among them."""
    dtype, shape = DATATYPES[draw(st.sampled_from(sorted(DATATYPES)))], draw(SIZES)
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count))).reshape(shape)
    size = count * dtype.itemsize
    return torch.frombuffer(bytearray(draw(st.binary(min_size=size, max_size=size))), dtype=dtype).reshape(shape)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def spec_of(name: str, tensor: Tensor) -> TensorSpec:
    return TensorSpec(name, tensor.dtype, (None, *tensor.shape[1:]))


@given(st.lists(tensors(), min_size=1, max_size=4))
def test_what_is_written_is_read(given_tensors: list[Tensor]) -> None:
    named = {f"t{i}": tensor for i, tensor in enumerate(given_tensors)}
    specs = [spec_of(name, tensor) for name, tensor in named.items()]
    body, size = asyncio.run(write_inference({"id": "a"}, named, dict.fromkeys(named, True)))
    head = json.loads(body[:size])
    head["inputs"] = head.pop("outputs")[::-1]  # in any order: their bytes follow in that order
    content = b"".join(bits(named[one["name"]]) for one in head["inputs"])
    written = json.dumps(head).encode()
    found = read_inference(written + content, str(len(written)), specs, ["out"])
    assert found.id == "a"
    for tensor, expected in zip(found.tensors, given_tensors, strict=True):
        assert (tensor.dtype, tensor.shape, bits(tensor)) == (expected.dtype, expected.shape, bits(expected))


@given(tensors())
def test_json_there_and_back(tensor: Tensor) -> None:
    wishes = {"x": False}
    if tensor.is_floating_point() and not tensor.isfinite().all():
        with pytest.raises(ApiError, match="ask for binary_data"):
            asyncio.run(write_inference({"id": "a"}, {"x": tensor}, wishes))
        return
    body, size = asyncio.run(write_inference({"id": "a"}, {"x": tensor}, wishes))
    assert size is None
    content = json.dumps({"inputs": json.loads(body)["outputs"]}).encode()
    [found] = read_inference(content, None, [spec_of("x", tensor)], ["x"]).tensors
    assert found.dtype == tensor.dtype
    assert torch.equal(found, tensor)


HEADS: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 30) | st.floats() | st.sampled_from(["x", "FP32", "INT8", ""]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "datatype", "data", "parameters", "binary_data_size", "binary_data"]),
            inner,
        )
    ),
    max_leaves=20,
)
SPECS = [TensorSpec("x", torch.float32, (None, 2)), TensorSpec("y", torch.int8, (None,))]


@given(
    head=st.fixed_dictionaries({"inputs": HEADS | st.lists(HEADS)}, optional={"outputs": HEADS, "id": HEADS}),
    content=st.binary(max_size=40),
    length=st.none() | st.integers(-2, 300).map(str) | st.text(max_size=4),
    is_honest=st.booleans(),
)
def test_nothing_but_a_refusal_comes_of_nonsense(
    head: Any, content: bytes, length: str | None, is_honest: bool
) -> None:
    written = json.dumps(head).encode()
    if is_honest:
        length = str(len(written))
    try:
        found = read_inference(written + content, length, SPECS, ["out"])
    except ApiError as error:
        assert error.status_code == 400
        error.response("/v2/models/x/infer")
        return
    assert [tensor.dtype for tensor in found.tensors] == [torch.float32, torch.int8]


@given(tensor=tensors(), cut=st.integers(1, 8), where=st.sampled_from(["short", "long"]))
def test_bytes_that_are_too_few_or_too_many(tensor: Tensor, cut: int, where: str) -> None:
    body, size = asyncio.run(write_inference({"id": "a"}, {"x": tensor}, {"x": True}))
    head = json.loads(body[:size])
    written = json.dumps({"inputs": head["outputs"]}).encode()
    content = bits(tensor)
    content = content[:-cut] if where == "short" else content + bytes(cut)
    with pytest.raises(ApiError, match=r"bytes (are left|follow)"):
        read_inference(written + content, str(len(written)), [spec_of("x", tensor)], ["x"])
