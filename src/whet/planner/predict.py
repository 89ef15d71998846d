"""Predict memory, operations, messages and time of one layout, with intervals, assumptions, and what lies outside."""

import math

from whet.errors import OptionError
from whet.planner.cluster import Cluster
from whet.planner.curves import Fitted, fitted, is_processor
from whet.planner.layout import Layout, Work
from whet.planner.memory import predict_memory
from whet.planner.model_shape import ModelShape
from whet.planner.operations import model_operations, step_operations
from whet.planner.optimizers import OPTIMIZERS
from whet.planner.parameters import model_count
from whet.planner.prediction import Interval, Prediction
from whet.planner.step_time import StepModel

# An interval is so many times as wide where anything lies outside of the fitted range.
WIDER_OUTSIDE = 2.0


def check_layout(shape: ModelShape, cluster: Cluster, layout: Layout, work: Work) -> None:
    """Check that a layout can be laid out.

    Raises:
        OptionError: Its degrees do not fill the cluster, or do not divide the model or the batch.
    """
    if layout.chips != cluster.num_chips:
        raise OptionError(
            f"the degrees of the layout multiply to {layout.chips} chips, but the cluster has {cluster.num_chips}"
        )
    rows = layout.data * layout.micro_batch_size
    if work.global_batch_size % rows:
        raise OptionError(
            f"a batch of {work.global_batch_size} rows does not divide into micro-batches of {layout.micro_batch_size} "
            f"on {layout.data} groups of chips; ask for a multiple of {rows}"
        )
    if layout.pipeline * layout.virtual_stages > shape.num_layers + 2:
        stages = layout.pipeline * layout.virtual_stages
        raise OptionError(f"{stages} pipeline stages are more than the {shape.num_layers} layers of {shape.name}")
    if shape.num_heads % layout.tensor:
        raise OptionError(
            f"{layout.tensor} tensor-parallel chips do not divide the {shape.num_heads} heads of {shape.name}"
        )
    if layout.expert > 1 and (shape.experts is None or shape.experts.number % layout.expert):
        raise OptionError(f"{layout.expert} expert-parallel chips do not divide the experts of {shape.name}")
    if (layout.data * layout.context) % layout.expert:
        raise OptionError(
            f"{layout.expert} expert-parallel chips have to divide the "
            f"{layout.data * layout.context} data-parallel ones among which they are chosen"
        )


def assumptions_of(cluster: Cluster, layout: Layout) -> tuple[str, ...]:
    """Return what predictions of a layout take as given, each with its source."""
    own = fitted(cluster, layout)
    lines = [
        f"peaks of {cluster.chip.name}: {cluster.chip.source}",
        f"links within a node, {cluster.inside.name}: {cluster.inside.source}",
        f"shares of the peaks that {layout.software} reaches: {own.source}",
        "activations: formulas of Korthikanti et al., 2022, arXiv:2205.05198, section 4",
        "state: Rajbhandari et al., 2020, arXiv:1910.02054, figure 1, "
        f"with {layout.bytes.parameter:g}, {layout.bytes.gradient:g} and {layout.bytes.state:g} bytes a parameter",
        f"state of {layout.optimizer}: {OPTIMIZERS[layout.optimizer].source}",
        "operations: all pairs of tokens are counted in attention, as in Korthikanti et al., 2022, appendix A",
        "collectives: rings over nodes of NVIDIA's NCCL, each chip with its own way out of the node",
    ]
    if cluster.between is not None:
        lines.insert(2, f"links between nodes, {cluster.between.name}: {cluster.between.source}")
    if is_processor(cluster.chip):
        lines.append(
            "memory: what tensors take; glibc's malloc keeps up to three times as much of what was freed, "
            "unless MALLOC_MMAP_THRESHOLD_=65536 is set (docs/results/training.md)"
        )
    if layout.pipeline > 1:
        lines.append("bubble: (p-1)/(mv) of the step, Narayanan et al., 2021, arXiv:2104.04473, section 2.2")
    if layout.expert > 1:
        lines.append("experts: tokens are taken to be spread equally over experts")
    return tuple(lines)


def _outside(own: Fitted, shape: ModelShape, cluster: Cluster, layout: Layout, work: Work) -> tuple[str, ...]:
    """Return in words what lies outside of the range of the fitted runs."""
    found = []
    if not own.is_own:
        found.append(
            f"no published runs of {layout.software} on {cluster.chip.name} were fitted; "
            f"those of {own.family} are taken"
        )
    for name, value in range_values(shape, cluster, layout, work).items():
        low, high = own.ranges.get(name, (0.0, math.inf))
        if not low <= value <= high:
            found.append(f"{name.replace('_', ' ')} {value:g} is outside of {low:g} to {high:g}")
    if layout.optimizer != "adamw":
        found.append(f"all published runs are with Adam, and this one is with {layout.optimizer}")
    if layout.offload:
        found.append("no published run keeps its optimiser in the host's memory")
    return tuple(found)


def range_values(shape: ModelShape, cluster: Cluster, layout: Layout, work: Work) -> dict[str, float]:
    """Return the figures of a run by which the fitted range is known."""
    return {
        "chips": cluster.num_chips,
        "parameters": model_count(shape).total,
        "hidden_size": shape.hidden_size,
        "sequence_length": work.sequence_length,
        "tokens_of_a_micro_batch": layout.micro_batch_tokens(work),
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "experts": shape.experts.number if shape.experts is not None else 1,
    }


def _interval(value: float, share: float) -> Interval:
    return Interval(value=value, low=value * max(0.0, 1 - share), high=value * (1 + share))


def predict(shape: ModelShape, cluster: Cluster, layout: Layout, work: Work) -> Prediction:
    """Predict what a layout takes on a cluster.

    Raises:
        OptionError: The degrees do not fill the cluster, or do not divide the model or the batch.
    """
    check_layout(shape, cluster, layout, work)
    return predict_with(fitted(cluster, layout), shape, cluster, layout, work)


def predict_with(own: Fitted, shape: ModelShape, cluster: Cluster, layout: Layout, work: Work) -> Prediction:
    """Predict with given constants, as the fit itself does."""
    num = layout.num_micro_batches(work)
    memory = predict_memory(shape, layout, work, num, own.constants.fragmentation)
    step = StepModel(shape, cluster, layout, work, own.constants, num).run()
    outside = _outside(own, shape, cluster, layout, work)
    wider = WIDER_OUTSIDE if outside else 1.0
    seconds, total = step.parts.total, memory.total
    flops = model_operations(shape, work)
    peak = cluster.chip.flops.get("bfloat16") or max(cluster.chip.flops.values())
    return Prediction(
        memory=memory,
        memory_total=_interval(total, own.spread.memory * wider),
        step=step.parts,
        step_s=_interval(seconds, own.spread.step * wider),
        flops=flops,
        flops_of_chips=step_operations(shape, layout, work),
        sent=step.sent,
        mfu=flops / (seconds * peak * cluster.num_chips),
        outside=outside,
    )
