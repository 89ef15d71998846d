"""Describe optimisers by what plans need: the bytes of their state, and what an update costs beside moving them."""

from dataclasses import dataclass

from whet.planner.layout import Bytes, OptimizerName, Precision
from whet.planner.model_shape import ModelShape
from whet.planner.parameters import Count, layer_count, model_count, num_sparse_layers

# Muon makes an update orthogonal in so many rounds of Newton and Schulz (Jordan et al., 2024).
_ROUNDS = 5


@dataclass(frozen=True)
class Optimizer:
    """Describe what an optimiser keeps of each parameter.

    Attributes:
        moments: The bytes a parameter, without a float32 copy of the weight.
        per_row: The bytes for each row and each column of a matrix.
        of_matrices: The bytes for a parameter of a layer's matrices, where those are kept otherwise.
        is_orthogonal: Whether updates of matrices are made orthogonal, by products of matrices.
        source: Where that comes from.
    """

    moments: float
    source: str
    per_row: float = 0.0
    of_matrices: float | None = None
    is_orthogonal: bool = False


OPTIMIZERS: dict[OptimizerName, Optimizer] = {
    "adamw": Optimizer(8, "two float32 moments: Loshchilov and Hutter, 2019, arXiv:1711.05101"),
    "adamw_8bit": Optimizer(
        2 + 2 * 4 / 256, "two 8-bit moments, a float32 scale for 256 numbers: Dettmers et al., 2021, arXiv:2110.02861"
    ),
    "sgd": Optimizer(4, "one float32 momentum: Sutskever et al., 2013"),
    "lion": Optimizer(4, "one float32 momentum: Chen et al., 2023, arXiv:2302.06675"),
    "adafactor": Optimizer(
        0, "a float32 number for each row and column, no momentum: Shazeer and Stern, 2018, arXiv:1804.04235", per_row=4
    ),
    "muon": Optimizer(
        8,
        "one float32 momentum for matrices of layers, AdamW for the rest: Liu et al., 2025, arXiv:2502.16982",
        of_matrices=4,
        is_orthogonal=True,
    ),
}


def bytes_of(shape: ModelShape, precision: Precision, name: OptimizerName) -> Bytes:
    """Return the bytes of a trained parameter: in float32, or in 16 bits with a float32 copy beside the moments.

    Rows and columns, and what an optimiser keeps otherwise for the matrices of layers, count as their mean over the
    model, so that a first stage of a pipeline with the embeddings may need a little more.
    """
    optimizer, kept = OPTIMIZERS[name], OPTIMIZERS[name].moments
    if optimizer.of_matrices is not None:
        total = model_count(shape).total
        inner = _of_layers(shape)
        kept += (optimizer.of_matrices - kept) * (inner.matrices + inner.experts) / total
    kept += 2 * optimizer.per_row / shape.hidden_size
    if precision == "float32":
        return Bytes(parameter=4, gradient=4, state=kept)
    return Bytes(parameter=2, gradient=4, state=4 + kept)


def _of_layers(shape: ModelShape) -> Count:
    sparse = num_sparse_layers(shape)
    return layer_count(shape, True).times(sparse) + layer_count(shape, False).times(shape.num_layers - sparse)


def update_operations(shape: ModelShape, name: OptimizerName) -> float:
    """Return the operations a parameter of a layer's matrices that an update takes beside reading and writing it.

    A round of Newton and Schulz on a matrix [m, n], m the smaller, has two products of 2mmn and one of 2mmm operations.
    The matrices of the MLP stand for all, since most parameters lie in them.
    """
    if not OPTIMIZERS[name].is_orthogonal:
        return 0.0
    inner = shape.experts.intermediate_size if shape.experts is not None else shape.intermediate_size
    small, large = sorted((shape.hidden_size, inner))
    return _ROUNDS * (4.0 * small + 2.0 * small * small / large)
