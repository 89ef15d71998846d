"""Run a decoder with long-term memory for an engine in PyTorch, one sequence of a step after the other."""

from dataclasses import replace

from whet.models.memory_bank.reference import Ltm
from whet.models.memory_bank.served_memory import ServedMemory, digest_of
from whet.models.memory_bank.state import LtmState, layer_state
from whet.models.state_rows import ServedInRows


class RowsOfLtmStates(ServedInRows[LtmState], ServedMemory):
    def __init__(self, model: Ltm, max_model_len: int | None = None) -> None:
        config = self.memory_config = model.config
        self.digest = digest_of(config, model.state_dict())
        of_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        of_segment = of_token * config.attention_block_size * model.lm_head.weight.itemsize
        super().__init__(model, max_model_len)
        largest = model.new_state(slots=config.max_memory_slots or None)
        self.bytes_per_state = self.bytes_per_draft = largest.num_bytes + of_segment

    def read_state(self, row: int, num_tokens: int | None = None) -> LtmState:
        return replace(self.rows.settled(row, num_tokens).clone(), model=self.digest)

    def write_state(self, row: int, state: LtmState) -> None:
        self.check_state(state)
        layers = []
        for layer, new in zip(state.layers, self.model.new_state().layers, strict=True):
            types = {name: tensor.dtype for name, tensor in new.tensors().items()}
            own = {name: tensor.to(types[name], copy=True) for name, tensor in layer.tensors().items()}
            layers.append(layer_state(own))
        self.rows.put(row, LtmState(layers, state.num_tokens))
