"""Read and write tensors of the Open Inference Protocol, as JSON and as bytes behind the JSON.

Sources: github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md;
github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from whet.server.artefacts.tensor_specs import DATATYPES, TensorSpec
from whet.server.http.answer import json_in_turns
from whet.server.http.errors import ApiError, invalid, of_field
from whet.server.http.reading import SMALL

HEADER_LENGTH = "Inference-Header-Content-Length"

_MAX_DIMS = 32
_MAX_TENSORS = 1024

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
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
    """Hold a request that was read.

    Attributes:
        id: The request's own name, which the answer repeats.
        tensors: The inputs, in the order of the model's.
        wishes: From each output that is asked for to whether it is to be bytes.
    """

    id: str | None
    tensors: tuple[Tensor, ...]
    wishes: dict[str, bool]


def read_inference(
    content: bytes, header_length: str | None, inputs: Sequence[TensorSpec], outputs: Sequence[str]
) -> Inference:
    """Read the body of a request.

    Args:
        content: The body.
        header_length: The header of that name: bytes of the JSON, where others follow it.
        inputs: What the model takes.
        outputs: The names of what it returns.

    Raises:
        ApiError: 400, with what is wrong.
    """
    head, rest = _split(content, header_length)
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


def _split(content: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """Return the JSON and the bytes behind it."""
    if header_length is None:
        return content, memoryview(b"")
    if not (header_length.isascii() and header_length.isdigit()) or not 0 < int(header_length) <= len(content):
        raise invalid(
            f"{HEADER_LENGTH} is {header_length!r}: it is the number of bytes of the JSON, from 1 to the body's "
            f"{len(content)}"
        )
    size = int(header_length)
    return content[:size], memoryview(content)[size:]


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
        raise of_field(error.errors(include_url=False, include_input=False)) from None


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
    dtype = spec.dtype
    try:
        values = np.array(data, dtype=object if dtype is torch.uint64 else None)  # it would mix them as float64
    except ValueError:
        raise invalid(f"input {given.name!r}: the lists in `data` have different lengths") from None
    if not _is_of(values, dtype):
        raise invalid(f"input {given.name!r}: `data` holds values that are no {given.datatype}")
    if values.size != (wanted := math.prod(given.shape)):
        raise invalid(f"input {given.name!r}: `data` holds {values.size} values, and {given.shape} takes {wanted}")
    if values.ndim > 1 and list(values.shape) != given.shape:
        raise invalid(f"input {given.name!r}: `data` has shape {list(values.shape)}, and `shape` says {given.shape}")
    if values.dtype.kind in "iuO":
        values = _within(given, dtype, values)
    tensor = torch.from_numpy(values).to(dtype).reshape(given.shape)
    if dtype.is_floating_point and not tensor.isfinite().all():
        raise _out_of_range(given)
    return tensor


def _is_of(values: Array, dtype: torch.dtype) -> bool:
    """Return whether all values are numbers that a type takes; their range aside."""
    if dtype is torch.bool:
        return values.dtype.kind == "b"
    if values.dtype.kind == "O":
        return dtype is torch.uint64 and all(type(value) is int for value in values.flat)
    return values.dtype.kind in ("fiu" if dtype.is_floating_point else "iu")


def _within(given: InputTensor, dtype: torch.dtype, values: Array) -> Array:
    """Return whole numbers in a form that torch reads.

    Raises:
        ApiError: A number is out of the type's range.
    """
    if dtype.is_floating_point:
        return values.astype(np.float64)
    limits = torch.iinfo(dtype)
    if int(values.min()) < limits.min or int(values.max()) > limits.max:
        raise _out_of_range(given)
    return values.astype(np.uint64 if dtype is torch.uint64 else np.int64)


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

    Args:
        head: The answer's fields beside `outputs`.
        outputs: The model's, by name.
        wishes: The outputs to be sent, and whether as bytes.

    Raises:
        ApiError: 400 where a value cannot be written as JSON.
    """
    described, binary = [], []
    for name, is_binary in wishes.items():
        tensor = outputs[name].contiguous()
        one: dict[str, Any] = {"name": name, "datatype": _datatype(tensor), "shape": list(tensor.shape)}
        if is_binary:
            binary.append(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            one["parameters"] = {"binary_data_size": len(binary[-1])}
            described.append(_json(one))
        else:
            described.append(_json(one)[:-1] + b',"data":' + await _data(name, tensor) + b"}")
    content = _json(head)[:-1] + b',"outputs":[' + b",".join(described) + b"]}"
    return b"".join((content, *binary)), len(content) if binary else None


async def written(head: dict[str, Any], name: str, values: list[Any]) -> bytes:
    """Return the JSON of an object whose last field is a long list, or of the list alone where it has no name.

    Others on the event loop have their turns meanwhile.
    """
    content = await json_in_turns(values)
    return _json(head)[:-1] + f',"{name}":'.encode() + content + b"}" if name else content


async def _data(name: str, tensor: Tensor) -> bytes:
    if tensor.dtype.is_floating_point and not tensor.isfinite().all():
        raise invalid(f"output {name!r} holds NaN or infinity, which JSON has no numbers for: ask for binary_data")
    values = tensor.reshape(-1).tolist()
    return _json(values) if tensor.nbytes < SMALL else await json_in_turns(values)


_DATATYPES = {dtype: name for name, dtype in DATATYPES.items()}


def _datatype(tensor: Tensor) -> str:
    return _DATATYPES[tensor.dtype]


def _json(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
