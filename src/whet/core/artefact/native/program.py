"""Describe a graph as a list of steps on buffers. Sizes are expressions of the free sizes of the inputs.

A step has the fields of the operation of its name in whet.kernels.graph.operations, with places instead of addresses
and names instead of matrices.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from whet.core.artefact.native.sizes import Size, check_size

FORMAT = 1

BufferIndex = int


@dataclass(frozen=True)
class Buffer:
    """Describe contiguous memory.

    Attributes:
        origin: "input" is a copy of a flat input, "value" of what a call of torch gave, "tensor" is a stored tensor,
            and "room" is written by the steps.
        size: How many numbers it holds.
        source: The input's or the call's index, or the tensor's name.
    """

    origin: Literal["input", "value", "tensor", "room"]
    dtype: str
    size: Size
    source: int | str = 0


@dataclass(frozen=True)
class Place:
    """Describe numbers in a buffer. Offset and strides are in numbers; a stride of 0 repeats them."""

    buffer: BufferIndex
    offset: Size
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]


@dataclass(frozen=True)
class NormStep:
    """Describe a norm over the last dimension. With is_rms, no mean is subtracted."""

    weight: Place | None
    bias: Place | None
    eps: float
    is_rms: bool


@dataclass(frozen=True)
class LinearStep:
    """Compute out = activation(norm(x) W^T + bias) + residual."""

    x: Place
    weights: str
    out: Place
    activation: str = "NONE"
    norm: NormStep | None = None
    residual: Place | None = None
    step: Literal["Linear"] = "Linear"


@dataclass(frozen=True)
class GatedStep:
    """Compute out = activation(gate) * up; the matrix holds sixteen outputs of gate, the same of up, and so on."""

    x: Place
    weights: str
    out: Place
    activation: str
    norm: NormStep | None = None
    step: Literal["Gated"] = "Gated"


@dataclass(frozen=True)
class NormaliseStep:
    """Compute total = x + other, where there is another, and out = norm(total)."""

    x: Place
    norm: NormStep
    out: Place
    other: Place | None = None
    total: Place | None = None
    step: Literal["Normalise"] = "Normalise"


@dataclass(frozen=True)
class EmbedStep:
    """Add up the rows of tables that indices name."""

    tables: tuple[Place, ...]
    indices: tuple[Place, ...]
    out: Place
    step: Literal["Embed"] = "Embed"


@dataclass(frozen=True)
class GatherStep:
    """Take the numbers of each row of x that indices name."""

    x: Place
    indices: Place
    out: Place
    step: Literal["Gather"] = "Gather"


@dataclass(frozen=True)
class AttendStep:
    """Compute scaled dot-product attention; the mask is True where a query looks, or is added to the scores."""

    q: Place
    k: Place
    v: Place
    out: Place
    scale: float
    is_causal: bool = False
    mask: Place | None = None
    step: Literal["Attend"] = "Attend"


@dataclass(frozen=True)
class MultiplyStep:
    """Compute out = a b for each batch."""

    a: Place
    b: Place
    out: Place
    step: Literal["Multiply"] = "Multiply"


@dataclass(frozen=True)
class SoftmaxStep:
    """Compute the softmax of each row."""

    x: Place
    out: Place
    step: Literal["Softmax"] = "Softmax"


@dataclass(frozen=True)
class ReduceStep:
    """Compute one number a row: its sum, mean or maximum."""

    x: Place
    out: Place
    kind: Literal["sum", "mean", "max"]
    step: Literal["Reduce"] = "Reduce"


@dataclass(frozen=True)
class ElementwiseStep:
    """Run a small program for each number: values are the inputs, then the results of the code in order."""

    inputs: tuple[Place, ...]
    code: tuple[tuple[str, int, int], ...]
    out: Place
    step: Literal["Elementwise"] = "Elementwise"


@dataclass(frozen=True)
class CopyStep:
    """Copy x to out, of equal shape and any strides."""

    x: Place
    out: Place
    step: Literal["Copy"] = "Copy"


@dataclass(frozen=True)
class FillStep:
    """Write a number everywhere."""

    out: Place
    value: float
    step: Literal["Fill"] = "Fill"


Step = Annotated[
    LinearStep | GatedStep | NormaliseStep | EmbedStep | GatherStep | AttendStep | MultiplyStep | SoftmaxStep
    | ReduceStep | ElementwiseStep | CopyStep | FillStep,
    Field(discriminator="step"),
]  # fmt: skip

_WRITTEN = ("out", "total")


@dataclass(frozen=True)
class Matrix:
    """Describe the weights of a linear layer: the stored tensors NAME.weight, with NAME.scale for int8, and NAME.bias.

    Attributes:
        kind: The name of a whet.kernels.linear.layout.Kind.
    """

    kind: Literal["F32", "BF16", "S8"]
    num_outputs: int
    num_inputs: int
    has_bias: bool


@dataclass(frozen=True)
class Call:
    """Describe a call of an operator of torch. torch_calls.py says how arguments are written."""

    operator: str
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def named(self, kind: str) -> list[Any]:
        """Return the names of tensors ("tensor") or the indices of calls ("value") in the arguments."""
        found, waiting = [], [*self.args, *self.kwargs.values()]
        for argument in waiting:
            if isinstance(argument, list):
                waiting += argument
            elif isinstance(argument, dict) and kind in argument:
                found.append(argument[kind])
        return found


@dataclass(frozen=True)
class Result:
    """Describe an output: a place, or the value of a call of torch."""

    place: Place | None = None
    value: int | None = None


@dataclass(frozen=True)
class Padding:
    """Say which sizes are those of a batch of sequences of which rows may be padding.

    Attributes:
        masks: The inputs that say so, by their names. Without a zero in one of them, there is no padding.
    """

    batch: Size
    length: Size
    masks: dict[str, int]


@dataclass(frozen=True)
class Program:
    """Describe a whole graph.

    Attributes:
        free: Each free size's name, with the input and the dimension that it is read from.
        calls: What torch computes before the steps, from inputs of whole numbers and from sizes.
        padding: Set where padding is left out.
    """

    free: dict[str, tuple[int, int]]
    buffers: list[Buffer]
    matrices: dict[str, Matrix]
    calls: list[Call]
    steps: list[Step]
    results: list[Result]
    padding: Padding | None = None
    format: int = FORMAT


_PROGRAM = TypeAdapter(Program)


def write_program(program: Program) -> str:
    return _PROGRAM.dump_json(program).decode()


def read_program(text: str) -> Program:
    """Return a program from its JSON.

    Raises:
        ValueError: It is damaged, of another format, or holds something else than sizes where sizes belong.
    """
    found = json.loads(text)
    if isinstance(found, dict) and found.get("format") != FORMAT:
        raise ValueError(f"format {found.get('format')}, and this whet reads format {FORMAT}")
    program = _PROGRAM.validate_json(text)
    for buffer in program.buffers:
        check_size(buffer.size, program.free)
    for size in () if program.padding is None else (program.padding.batch, program.padding.length):
        check_size(size, program.free)
    places = [place for step in program.steps for place in (*read_by(step), *written_by(step))]
    for place in [*places, *(result.place for result in program.results if result.place is not None)]:
        if not 0 <= place.buffer < len(program.buffers):
            raise ValueError(f"there is no buffer {place.buffer}")
        for size in (place.offset, *place.shape, *place.strides):
            check_size(size, program.free)
    return program


def read_by(step: Step) -> Iterator[Place]:
    """Yield every place that a step reads."""
    for item in dataclasses.fields(step):
        if item.name not in _WRITTEN:
            yield from _places(getattr(step, item.name))


def written_by(step: Step) -> Iterator[Place]:
    for name in _WRITTEN:
        yield from _places(getattr(step, name, None))


def _places(found: Any) -> Iterator[Place]:
    if isinstance(found, Place):
        yield found
    elif isinstance(found, NormStep):
        yield from (place for place in (found.weight, found.bias) if place is not None)
    elif isinstance(found, tuple):
        yield from (item for item in found if isinstance(item, Place))
