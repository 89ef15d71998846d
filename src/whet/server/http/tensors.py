"""Read and write tensors of the Open Inference Protocol, as JSON and as bytes behind the JSON.

Sources: github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md;
github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from whet.server.artefacts.tensor_specs import TensorSpec, datatype_of
from whet.server.http.answer import json_in_turns
from whet.server.http.errors import HEADER_LENGTH, ApiError, invalid, of_validation
from whet.server.http.request_parsing import SMALL

_MAX_DIMS = 32
_MAX_TENSORS = 1024
_MAX_DIGITS = 10  # of the number of bytes of the JSON
_MOST_VALUES = 2**18  # in the JSON of a request; the interpreter's lock is held while they are read

Parameters = Mapping[str, Any]
Size = Annotated[int, Field(ge=0, lt=2**31)]


class _Part(BaseModel):
    # strict: "5" is no number, and 1 no boolean
    model_config = ConfigDict(extra="ignore", strict=True)


class InputTensor(_Part):
    """Hold one input of a request.

    Attributes:
        name: The input's name.
        shape: Its shape, with the samples in the first dimension.
        datatype: Its type, as FP32.
        parameters: What the request says beside; binary_data_size is the number of bytes behind the JSON.
        data: Nested lists as the shape has them, or one flat list; None if the values are bytes.
    """

    name: Annotated[str, Field(max_length=1024)]
    shape: Annotated[list[Size], Field(max_length=_MAX_DIMS)]
    datatype: Annotated[str, Field(max_length=16)]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class OutputWish(_Part):
    """Hold one output that is asked for.

    Attributes:
        name: The output's name.
        parameters: What the request says beside; binary_data says whether its values are to be bytes.
    """

    name: Annotated[str, Field(max_length=1024)]
    parameters: dict[str, Any] | None = None


class InferenceRequest(_Part):
    """Hold the JSON of POST /v2/models/NAME/infer."""

    id: Annotated[str, Field(max_length=1024)] | None = None
    parameters: dict[str, Any] | None = None
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=_MAX_TENSORS)]
    outputs: Annotated[list[OutputWish], Field(max_length=_MAX_TENSORS)] | None = None


@dataclass(frozen=True)
class Inference:
    """Hold a request that was read, with its tensors in the order of the model's inputs.

    Attributes:
        id: The request's own name, which the answer repeats.
        wishes: From each output that is asked for to whether it is to be bytes.
    """

    id: str | None
    tensors: tuple[Tensor, ...]
    wishes: dict[str, bool]


def read_inference(
    content: bytes, header_length: str | None, inputs: Sequence[TensorSpec], outputs: Sequence[str]
) -> Inference:
    """Read the body of a request. The header `header_length` says how many of its bytes are JSON; without it, all are.

    Raises:
        ApiError: 400, with what is wrong; 413 where the JSON holds too many values.
    """
    size = json_size(content, header_length)
    head, rest = content[:size], memoryview(content)[size:]
    if head.count(b",") >= _MOST_VALUES:
        raise ApiError(413, f"the JSON holds more than {_MOST_VALUES} values: send large tensors as binary data")
    request = _parse(head)
    by_name = {spec.name: spec for spec in inputs}
    found: dict[str, Tensor] = {}
    for given in request.inputs:
        if given.name not in by_name:
            raise invalid(f"the model has no input {given.name!r}; it takes {_listed(inputs)}")
        if given.name in found:
            raise invalid(f"input {given.name!r} is given twice")
        found[given.name], rest = _read(given, by_name[given.name], rest)
    if missing := [spec for spec in inputs if spec.name not in found]:
        raise invalid(f"input {missing[0].name!r} is missing; the model takes {_listed(inputs)}")
    if len(rest):
        raise invalid(
            f"{len(rest)} bytes follow the last binary input: the binary_data_size of the inputs is too small"
        )
    _check_ones(request.parameters)
    return Inference(request.id, tuple(found[spec.name] for spec in inputs), _wishes(request, outputs))


def json_size(content: bytes, header_length: str | None) -> int:
    """Return how many bytes of a body are its JSON.

    Raises:
        ApiError: 400 where the header says something impossible.
    """
    if header_length is None:
        return len(content)
    is_number = header_length.isascii() and header_length.isdigit() and len(header_length) <= _MAX_DIGITS
    if not is_number or not 0 < int(header_length) <= len(content):
        raise invalid(
            f"{HEADER_LENGTH} is {header_length[:40]!r}: it is the number of bytes of the JSON, from 1 to the body's "
            f"{len(content)}"
        )
    return int(header_length)


def _parse(head: bytes) -> InferenceRequest:
    try:
        fields = json.loads(head, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body cannot be read as JSON: {error}") from error
    if not isinstance(fields, dict):
        raise invalid("the body must be a JSON object with `inputs`")
    try:
        return InferenceRequest.model_validate(fields)
    except ValidationError as error:
        raise of_validation(error) from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON; send such values as binary data")


def _read(given: InputTensor, spec: TensorSpec, rest: memoryview) -> tuple[Tensor, memoryview]:
    """Return one input as a tensor, and the bytes that are left."""
    if given.datatype != spec.datatype:
        raise invalid(f"input {given.name!r} is {given.datatype}; the model takes {spec}")
    if not spec.takes(given.shape):
        raise invalid(f"input {given.name!r} has shape {given.shape}; the model takes {spec}")
    if 0 in given.shape:
        raise invalid(f"input {given.name!r} has shape {given.shape}, which holds no value")
    _check_ones(given.parameters)
    size = (given.parameters or {}).get("binary_data_size")
    if size is not None:
        if given.data is not None:
            raise invalid(f"input {given.name!r} has `data` and binary_data_size: send one of them")
        return _from_bytes(given, spec, size, rest)
    if given.data is None:
        raise invalid(f"input {given.name!r} has neither `data` nor the parameter binary_data_size")
    return _from_json(given, spec, given.data), rest


def _from_bytes(given: InputTensor, spec: TensorSpec, size: object, rest: memoryview) -> tuple[Tensor, memoryview]:
    wanted = math.prod(given.shape) * spec.dtype.itemsize
    if not isinstance(size, int) or isinstance(size, bool) or size != wanted:
        raise invalid(
            f"input {given.name!r}: binary_data_size is {size}, and {given.datatype} {given.shape} takes {wanted} bytes"
        )
    if size > len(rest):
        raise invalid(f"input {given.name!r}: binary_data_size is {size}, and {len(rest)} bytes are left of the body")
    part = bytearray(rest[:size])  # a copy: memory of its own, aligned, that may be written to
    if spec.dtype is torch.bool and part.translate(None, b"\0\1"):
        raise invalid(f"input {given.name!r}: a BOOL is a byte of 0 or 1")
    return torch.frombuffer(part, dtype=spec.dtype).reshape(given.shape), rest[size:]


def _from_json(given: InputTensor, spec: TensorSpec, data: list[Any]) -> Tensor:
    """Return the values of `data` as a tensor. Their types and their number are checked before numpy takes them."""
    dtype = spec.dtype
    values, found = _flattened(given, data)
    if not set(map(type, values)) <= _types_for(dtype):
        raise invalid(f"input {given.name!r}: `data` holds values that are no {given.datatype}")
    if len(values) != (wanted := math.prod(given.shape)):
        raise invalid(f"input {given.name!r}: `data` holds {len(values)} values, and {given.shape} takes {wanted}")
    if len(found) > 1 and found != given.shape:
        raise invalid(f"input {given.name!r}: `data` has shape {found}, and `shape` says {given.shape}")
    if not (dtype.is_floating_point or dtype is torch.bool):
        limits = torch.iinfo(dtype)
        if min(values) < limits.min or max(values) > limits.max:
            raise _out_of_range(given)
    try:
        array: np.ndarray[Any, Any] = np.array(values, dtype=_read_as(dtype))
    except OverflowError:
        raise _out_of_range(given) from None
    tensor = torch.from_numpy(array).to(dtype).reshape(given.shape)
    if dtype.is_floating_point and not tensor.isfinite().all():
        raise _out_of_range(given)
    return tensor


def _flattened(given: InputTensor, data: list[Any]) -> tuple[list[Any], list[int]]:
    """Return the values of nested lists as one list, and the shape of the lists."""
    values, shape = data, [len(data)]
    while values and type(values[0]) is list:
        lengths = {len(one) if type(one) is list else -1 for one in values}
        if len(lengths) > 1:
            raise invalid(f"input {given.name!r}: the lists in `data` have different lengths")
        values = list(chain.from_iterable(values))
        shape.append(lengths.pop())
    return values, shape


def _types_for(dtype: torch.dtype) -> set[type]:
    """Return what JSON values may be. A boolean is no number here, although Python takes it for one."""
    if dtype is torch.bool:
        return {bool}
    return {int, float} if dtype.is_floating_point else {int}


def _read_as(dtype: torch.dtype) -> type:
    """Return the numpy type that holds every value of a type, and that torch reads."""
    if dtype is torch.bool:
        return np.bool_
    if dtype.is_floating_point:
        return np.float64
    return np.uint64 if dtype is torch.uint64 else np.int64


def _out_of_range(given: InputTensor) -> ApiError:
    return invalid(f"input {given.name!r}: a value of `data` is out of the range of {given.datatype}")


def _check_ones(parameters: Parameters | None) -> None:
    """Refuse what would change the answer if it were left out of account."""
    for name in ("shared_memory_region", "sequence_id", "classification"):
        if (parameters or {}).get(name):
            raise invalid(f"the parameter {name!r} is not supported")


def _wishes(request: InferenceRequest, outputs: Sequence[str]) -> dict[str, bool]:
    """Return the outputs that are asked for, all where none is named, and whether each is to be bytes."""
    whole = _is_binary(request.parameters, "binary_data_output", otherwise=False)
    if not request.outputs:
        return dict.fromkeys(outputs, whole)
    wishes: dict[str, bool] = {}
    for wish in request.outputs:
        if wish.name not in outputs:
            raise invalid(f"the model has no output {wish.name!r}; it returns {', '.join(outputs)}")
        _check_ones(wish.parameters)
        wishes[wish.name] = _is_binary(wish.parameters, "binary_data", otherwise=whole)
    return wishes


def _is_binary(parameters: Parameters | None, name: str, *, otherwise: bool) -> bool:
    value = (parameters or {}).get(name)
    if value is None:
        return otherwise
    if not isinstance(value, bool):
        raise invalid(f"the parameter {name!r} is true or false")
    return value


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, specs))


async def write_inference(
    head: dict[str, Any], outputs: Mapping[str, Tensor], wishes: Mapping[str, bool]
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the bytes of its JSON where others follow it.

    `head` has the fields beside `outputs`, and `wishes` the outputs to be sent, and whether as bytes.

    Raises:
        ApiError: 400 where a value cannot be written as JSON.
    """
    described, binary = [], []
    for name, is_binary in wishes.items():
        tensor = outputs[name].contiguous()
        one: dict[str, Any] = {"name": name, "datatype": datatype_of(tensor.dtype), "shape": list(tensor.shape)}
        if is_binary:
            binary.append(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            one["parameters"] = {"binary_data_size": len(binary[-1])}
            described.append(_json(one))
        else:
            described.append(_json(one)[:-1] + b',"data":' + await _data(name, tensor) + b"}")
    content = _json(head)[:-1] + b',"outputs":[' + b",".join(described) + b"]}"
    return b"".join((content, *binary)), len(content) if binary else None


async def written(head: dict[str, Any], name: str, values: list[Any]) -> Response:
    """Return the JSON answer of an object whose last field is a long list, or of the list alone where it has no name.

    Others on the event loop have their turns meanwhile.
    """
    content = await json_in_turns(values)
    content = _json(head)[:-1] + f',"{name}":'.encode() + content + b"}" if name else content
    return Response(content, media_type="application/json")


async def _data(name: str, tensor: Tensor) -> bytes:
    if tensor.dtype.is_floating_point and not tensor.isfinite().all():
        raise invalid(f"output {name!r} holds NaN or infinity, which JSON has no numbers for: ask for binary_data")
    values = tensor.reshape(-1).tolist()
    return _json(values) if tensor.nbytes < SMALL else await json_in_turns(values)


def _json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
