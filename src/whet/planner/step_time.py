"""Put the time of a step together: layers, exposed messages, the pipeline's bubble, the optimiser."""

import math
from dataclasses import dataclass

from whet.planner.cluster import Cluster
from whet.planner.curves import Constants
from whet.planner.layer_time import Speeds, accumulation_s, extra_time, head_time, layer_time, speeds
from whet.planner.layout import Layout, Work
from whet.planner.memory import state_bytes
from whet.planner.messages import Groups, groups, layer_messages, stage_message, state_messages
from whet.planner.model_shape import ModelShape
from whet.planner.network import Wires, all_gather_s, wires
from whet.planner.optimizers import update_operations
from whet.planner.parameters import (
    Count,
    embedding_count,
    head_count,
    layer_count,
    stage_counts,
    stage_kinds,
)
from whet.planner.prediction import StepParts


@dataclass(frozen=True)
class StepTime:
    """Hold the parts of a step's time, and the bytes that a chip sends in it by what for."""

    parts: StepParts
    sent: dict[str, float]


@dataclass
class StageTime:
    """Sum up the seconds of one micro-batch on one pipeline stage, and the bytes that a chip of it sends."""

    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    data: float = 0.0
    sent_tensor: float = 0.0
    sent_context: float = 0.0
    sent_expert: float = 0.0
    sent_data: float = 0.0

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.recompute + self.tensor + self.context + self.expert + self.data


def exposed_s(messages: float, meanwhile: float, contention: float) -> float:
    """Return by how much messages lengthen what hides them: what is left over, and what they slow down."""
    return max(0.0, messages - meanwhile) + contention * min(messages, meanwhile)


class StepModel:
    """Compute the time of a step of one layout.

    Attributes:
        num_micro_batches: The micro-batches of each chip in a step.
    """

    def __init__(
        self, shape: ModelShape, cluster: Cluster, layout: Layout, work: Work, constants: Constants, num: int
    ) -> None:
        self.shape, self.cluster, self.layout, self.work = shape, cluster, layout, work
        self.constants, self.num_micro_batches = constants, num
        self.speed: Speeds = speeds(cluster.chip, layout, constants)
        self.wire: Wires = wires(cluster, constants)
        self.group: Groups = groups(cluster, layout)

    def _gathers_each_time(self) -> bool:
        """Return whether parameters are gathered, and gradients summed, in each micro-batch."""
        return self.layout.zero_stage >= 2 and self.layout.pipeline == 1

    def _copies_s(self, count: Count) -> float:
        """Return the seconds in which FSDP2 copies gathered parameters out of messages, and gradients into them."""
        layout = self.layout
        if not layout.software.startswith("torch"):
            return 0.0
        gathers = 2 if layout.zero_stage == 3 else 1
        return 2 * sum(count.held(layout)) * (gathers * layout.number_bytes + layout.bytes.gradient) / self.speed.memory

    def _add_layers(self, stage: StageTime, number: int, is_sparse: bool) -> None:
        """Add layers of one kind to a stage."""
        shape, layout, constants = self.shape, self.layout, self.constants
        time = layer_time(shape, layout, self.work, is_sparse, self.speed)
        message = layer_messages(shape, layout, self.work, is_sparse, self.group, self.wire)
        # PyTorch keeps the sums of tensor-parallel chips and gathers again; the exchange of tokens is not kept.
        times = 3 if layout.recompute == "full" else 2
        tensor_times = 2.5 if layout.recompute == "operators" else times
        stage.forward += number * time.forward
        stage.backward += number * time.backward
        stage.recompute += number * time.recompute
        shown = 1 - constants.hidden if layout.overlaps_tensor else 1.0
        stage.tensor += number * tensor_times * shown * message.tensor_forward
        expert, behind = message.expert_forward, time.forward
        stage.expert += (
            number * times * (exposed_s(expert, behind, constants.contention) if layout.overlaps_expert else expert)
        )
        stage.sent_tensor += number * tensor_times * message.tensor_bytes
        stage.sent_expert += number * times * message.expert_bytes
        if layout.context > 1:
            ring, inside = message.context_forward, time.attention
            stage.context += number * (times - 1) * exposed_s(ring, inside, constants.contention)
            stage.context += number * exposed_s(2 * ring, 2.5 * inside, constants.contention)
            stage.sent_context += number * (times + 1) * message.context_bytes
        if self._gathers_each_time():
            count = layer_count(shape, is_sparse)
            state = state_messages(count, layout, self.group, self.wire)
            again = 1 if layout.zero_stage == 3 else 0
            behind = time.backward + time.recompute
            stage.data += number * exposed_s(state.gather, time.forward, constants.contention)
            stage.data += number * exposed_s(again * state.gather + state.reduce, behind, constants.contention)
            stage.data += number * self._copies_s(count)
            stage.sent_data += number * ((1 + again) * state.gather_bytes + state.reduce_bytes)

    def stage(self, index: int) -> StageTime:
        """Return one micro-batch's time on a pipeline stage."""
        shape, layout = self.shape, self.layout
        stage = StageTime()
        plain, sparse = stage_kinds(shape, layout.pipeline)[index]
        if plain:
            self._add_layers(stage, plain, False)
        if sparse:
            self._add_layers(stage, sparse, True)
        if index == layout.pipeline - 1:
            for forward, backward in (
                head_time(shape, layout, self.work, self.speed),
                extra_time(shape, layout, self.work, self.speed),
            ):
                stage.forward += forward
                stage.backward += backward
        if self._gathers_each_time():
            # Nothing hides the first gathering, of the embeddings, and the last sum.
            count = embedding_count(shape) + head_count(shape)
            state = state_messages(count, layout, self.group, self.wire)
            stage.data += state.gather + state.reduce + self._copies_s(count)
            stage.sent_data += state.gather_bytes + state.reduce_bytes
        elif self.num_micro_batches > 1:
            held = sum(stage_counts(shape, layout.pipeline)[index].held(layout))
            stage.backward += accumulation_s(held, layout, self.speed)
        return stage

    def _data_once(self, count: Count, stage: StageTime) -> tuple[float, float]:
        """Return the exposed seconds and the bytes of state that is gathered and summed once a step."""
        layout = self.layout
        if self._gathers_each_time() or layout.data * layout.context == 1:
            return 0.0, 0.0
        state = state_messages(count, layout, self.group, self.wire)
        sent = state.gather_bytes + state.reduce_bytes
        if not layout.overlaps_data:
            return state.gather + state.reduce, sent
        contention = self.constants.contention
        exposed = exposed_s(state.gather, stage.forward, contention)
        return exposed + exposed_s(state.reduce, stage.backward + stage.recompute, contention), sent

    def _optimizer_s(self, count: Count) -> float:
        """Return the seconds in which gradients are clipped, and the optimiser reads them and moves its state.

        Clipping reads the gradients for their norm, then reads and writes them.
        """
        layout = self.layout
        _, gradients, state = state_bytes(count, layout.model_copy(update={"offload": False}))
        size = layout.bytes
        number = state / size.state
        moved = 3 * gradients + number * (size.gradient + size.parameter) + (0.0 if layout.offload else 2 * state)
        found = moved / self.speed.memory + self._orthogonal_s(number)
        return found + 2 * state / self.cluster.host.link.bytes_per_s if layout.offload else found

    def _orthogonal_s(self, number: float) -> float:
        """Return the seconds in which updates of matrices are made orthogonal; 0 for most optimisers.

        Chips that share the state or the matrices make the updates of whole matrices in turn, whose gradients go to one
        of them and back in 16 bits (Liu et al., 2025, arXiv:2502.16982, section 2.3).

        Args:
            number: The parameters whose state the chip holds.
        """
        layout, operations = self.layout, update_operations(self.shape, self.layout.optimizer)
        if not operations:
            return 0.0
        groups = [self.group.tensor, *([self.group.shard] if layout.zero_stage else [])]
        sent = sum(2 * all_gather_s(layout.number_bytes * number, group, self.wire) for group in groups)
        return number * operations / self.speed.matrix + sent

    def _sends(self) -> tuple[float, float]:
        """Return the exposed seconds and the bytes that stages take to send a micro-batch on, there and back."""
        layout = self.layout
        seconds, size = stage_message(self.shape, layout, self.work, self.group, self.wire)
        sends = 2 * layout.virtual_stages
        if layout.virtual_stages > 1 and layout.software.endswith("2024"):
            # Interleaved stages send a piece while they compute the next one.
            seconds *= self.constants.contention
        return sends * seconds, sends * size

    def run(self) -> StepTime:
        """Return the time of the step on the pipeline stage that is slowest, by part."""
        last = self.layout.pipeline - 1
        stages = {index: self.stage(index) for index in sorted({0, min(1, last), last})}
        send, send_bytes = self._sends()
        ends = stages[0].total + stages[last].total
        others = (ends + max(0, last - 1) * stages[min(1, last)].total) / (last + 1)
        bubble = last / self.layout.virtual_stages * (others + send) if last else 0.0
        times = [self._step(index, stage, send, send_bytes, bubble) for index, stage in stages.items()]
        return max(times, key=lambda time: time.parts.total)

    def _with_slowest(self, parts: StepParts) -> StepParts:
        """Return the parts of a step in which all chips wait for the slowest of them.

        The largest of n normal numbers is about sqrt(2 ln n) deviations above their mean. What the chips of one node
        wait for each other is in the shares of the peaks that they reach.
        """
        number, node = self.cluster.num_chips, self.cluster.chips_per_node
        deviations = max(0.0, math.sqrt(2 * math.log(number)) - math.sqrt(2 * math.log(node)))
        return parts.model_copy(update={"slowest": self.constants.jitter * deviations * parts.total})

    def _step(self, index: int, stage: StageTime, send: float, send_bytes: float, bubble: float) -> StepTime:
        """Return the time of the step as if this stage were the slowest."""
        num = self.num_micro_batches
        count = stage_counts(self.shape, self.layout.pipeline)[index]
        data, data_bytes = self._data_once(count, stage)
        parts = StepParts(
            forward=num * stage.forward,
            backward=num * stage.backward,
            recompute=num * stage.recompute,
            tensor_communication=num * stage.tensor,
            pipeline_communication=num * send,
            data_communication=num * stage.data + data,
            context_communication=num * stage.context,
            expert_communication=num * stage.expert,
            bubble=bubble,
            optimizer=self._optimizer_s(count),
        )
        sent = {
            "tensor": num * stage.sent_tensor,
            "pipeline": num * send_bytes,
            "data": num * stage.sent_data + data_bytes,
            "context": num * stage.sent_context,
            "expert": num * stage.sent_expert,
        }
        return StepTime(self._with_slowest(parts), sent)
