"""A small predictor for tests of what chooses among predictions: rooflines and counted bytes, nothing fitted."""

from whet.planner.cluster import Chip, Cluster, Host, Link
from whet.planner.layout import Layout, Work
from whet.planner.model_shape import Experts, ModelShape
from whet.planner.prediction import Interval, MemoryParts, Prediction, StepParts


def a_cluster(number: int, *, per_node: int = 8, memory_gb: float = 80, dollars: float | None = 2.0) -> Cluster:
    link = Link(source="a test", name="fast", bytes_per_s=450e9, latency_s=5e-6)
    chip = Chip(
        source="a test", name="chip", flops={"bfloat16": 1e15, "float32": 6e13}, memory_bytes=memory_gb * 1e9,
        bytes_per_s=3.3e12, power_w=700, dollars_per_hour=dollars,
    )  # fmt: skip
    host = Host(
        source="a test",
        name="host",
        memory_bytes=2e12,
        power_w=3000,
        link=link.model_copy(update={"bytes_per_s": 5e10}),
    )
    between = link.model_copy(update={"name": "slow", "bytes_per_s": 50e9, "latency_s": 1e-5})
    return Cluster(
        name="test", chip=chip, chips_per_node=per_node, num_chips=number, host=host, inside=link, between=between
    )


def a_shape(**given: object) -> ModelShape:
    sizes: dict[str, object] = {
        "name": "small", "num_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_heads": 32,
        "num_kv_heads": 8, "head_size": 128, "vocab_size": 128_256,
    }  # fmt: skip
    return ModelShape.model_validate(sizes | given)


def parameters(shape: ModelShape) -> tuple[float, float]:
    """Return all parameters, and those that see a token."""
    d, head = shape.hidden_size, shape.head_size
    attention = 2 * d * head * (shape.num_heads + shape.num_kv_heads)
    matrices = 3 if shape.is_gated else 2
    dense = matrices * d * shape.intermediate_size
    rest = shape.vocab_size * d * (1 if shape.is_tied else 2)
    if shape.experts is None:
        both = shape.num_layers * (attention + dense) + rest
        return both, both
    one = matrices * d * shape.experts.intermediate_size
    layers = shape.num_layers - shape.experts.num_dense_layers
    both = shape.num_layers * attention + shape.experts.num_dense_layers * dense + rest
    seen = shape.experts.shared + shape.experts.per_token
    return both + layers * one * (shape.experts.shared + shape.experts.number), both + layers * one * seen


def held_parameters(shape: ModelShape, layout: Layout) -> float:
    """Return what a chip holds before ZeRO divides it."""
    everything, active = parameters(shape)
    if isinstance(shape.experts, Experts):
        everything = active + (everything - active) / layout.expert
    return everything / (layout.tensor * layout.pipeline)


def sharing(layout: Layout, stage: int) -> int:
    """Return how many chips share what this stage of ZeRO divides."""
    return layout.shard if layout.zero_stage >= stage else 1


def micro_batches(layout: Layout, work: Work) -> int:
    return work.global_batch_size // (layout.data * layout.micro_batch_size)


def memory_of(shape: ModelShape, layout: Layout, work: Work) -> MemoryParts:
    held = held_parameters(shape, layout)
    tokens = layout.micro_batch_size * work.sequence_length / layout.context
    layers = -(-shape.num_layers // layout.pipeline)
    per_layer = tokens * shape.hidden_size * (2 if layout.recompute == "full" else 34 / layout.tensor)
    in_flight = min(layout.pipeline, micro_batches(layout, work))
    return MemoryParts(
        parameters=layout.bytes.parameter * held / sharing(layout, 3),
        gradients=layout.bytes.gradient * held / sharing(layout, 2),
        optimizer=0.0 if layout.offload else layout.bytes.state * held / sharing(layout, 1),
        activations=per_layer * layers * in_flight * (1 + (layout.virtual_stages > 1) * 0.2),
        buffers=4 * tokens * shape.vocab_size / layout.tensor + 1e9,
        fragmentation=0.0,
    )


def sent_bytes(shape: ModelShape, layout: Layout, work: Work) -> dict[str, float]:
    """Return what a chip sends in a step, by what for."""
    held, parts = held_parameters(shape, layout), micro_batches(layout, work)
    tokens = layout.micro_batch_size * work.sequence_length / layout.context
    layers = -(-shape.num_layers // layout.pipeline)
    share = lambda degree: (degree - 1) / degree  # noqa: E731
    data = 2 * share(layout.data) * 2 * held
    if layout.zero_stage == 3:
        data = 3 * share(layout.shard) * 2 * held * (parts if layout.pipeline > 1 else 1)
    elif layout.zero_stage == 2 and layout.pipeline > 1:
        data *= (1 + parts) / 2
    return {
        "tensor": 8 * share(layout.tensor) * 2 * tokens * shape.hidden_size * layers * parts,
        "pipeline": 4 * tokens * shape.hidden_size * parts * layout.virtual_stages if layout.pipeline > 1 else 0.0,
        "data": data,
        "context": 4.0 * tokens * shape.num_kv_heads * shape.head_size * layers * parts * share(layout.context),
        "expert": 8.0 * tokens * shape.hidden_size * layers * parts * share(layout.expert),
    }


def predict(shape: ModelShape, cluster: Cluster, layout: Layout, work: Work) -> Prediction:
    _, active = parameters(shape)
    memory, sent, parts = memory_of(shape, layout, work), sent_bytes(shape, layout, work), micro_batches(layout, work)
    chips, peak = cluster.num_chips, cluster.chip.flops["bfloat16"]
    flops = 6 * active * work.tokens + 6 * work.tokens * work.sequence_length * shape.num_layers * shape.hidden_size
    size = layout.micro_batch_size * work.sequence_length / layout.context * shape.hidden_size / layout.tensor
    efficiency = 0.7 * size / (size + 2e5)
    forward = flops / 3 / chips / peak / efficiency

    def rate(chips: int) -> float:
        link = cluster.between if chips > cluster.chips_per_node else None
        return (link or cluster.inside).bytes_per_s

    data_rate = rate(layout.shard * layout.tensor if layout.zero_stage == 3 else chips if layout.data > 1 else 1)
    updated = 16 * held_parameters(shape, layout) / sharing(layout, 1)
    busy = 3 * forward + (forward if layout.recompute == "full" else 0)
    step = StepParts(
        forward=forward,
        backward=2 * forward,
        recompute=forward if layout.recompute == "full" else 0.0,
        tensor_communication=sent["tensor"] / rate(layout.tensor) / (2 if layout.sequence_parallel else 1),
        pipeline_communication=sent["pipeline"] / rate(chips),
        data_communication=0.3 * sent["data"] / data_rate,
        context_communication=sent["context"] / rate(layout.tensor * layout.context),
        expert_communication=sent["expert"] / rate(layout.expert * layout.tensor),
        bubble=busy * (layout.pipeline - 1) / parts / layout.virtual_stages,
        optimizer=updated / (cluster.host.link.bytes_per_s if layout.offload else cluster.chip.bytes_per_s),
    )
    return Prediction(
        memory=memory,
        memory_total=Interval(value=memory.total, low=0.9 * memory.total, high=1.1 * memory.total),
        step=step,
        step_s=Interval(value=step.total, low=0.85 * step.total, high=1.15 * step.total),
        flops=flops,
        flops_of_chips=flops * (4 / 3 if layout.recompute == "full" else 1),
        sent=sent,
        mfu=flops / step.total / chips / peak,
        outside=() if chips <= 4096 else (f"{chips} chips, and the published runs have 8 to 4,096",),
    )
