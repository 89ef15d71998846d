"""Define the long-term-memory decoder `ltm`: a Llama whose attention ends with the segment, and memories that go on.

A token attends to its own segment. What lies before reaches it through a bank of slots (bank.py), a memory that learns
while it reads (inference_learning.py), or both. Without them, a token provably depends on its segment alone; with
attention_block_size of at least the text's length, attention is full.

    model = Ltm(LtmConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                          num_attention_heads=2, attention_block_size=64, memory_slots=16))
    logits = model(tokens)                       # [B, T, V], from nothing
    state = model.new_state(batch_size)          # a fixed size, whatever is read
    logits = model.step(tokens, state)           # [B, V] after the last token; the state moves on

memory_slots=0 leaves the bank out, test_time_memory="linear" or "mlp" adds the other memory, intermediate_size=0 leaves
the MLPs out. See LtmConfig for what training adds: recomputation of blocks of segments, truncated backpropagation.

Shape suffixes: B batch, T tokens, D model width, V vocabulary, H head width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whet.errors import OptionError
from whet.models.decoder.reference import GatedMLP
from whet.models.decoder.rope import cosines_and_sines, inverse_frequencies
from whet.models.memory_bank.attention import SegmentAttention, SegmentState
from whet.models.memory_bank.bank import MemoryBank, new_bank
from whet.models.memory_bank.blocks import Piece, pieces
from whet.models.memory_bank.config import Granularity, LtmConfig
from whet.models.memory_bank.inference_learning import TestTimeMemory
from whet.models.memory_bank.served_memory import digest_of
from whet.models.memory_bank.slots import (
    adapted,
    change_banks,
    check_slots,
    cleared,
    compressed,
    grown,
    kept,
    memory_stats,
)
from whet.models.memory_bank.state import LayerState, LtmState, check_state

Angles = tuple[Tensor, Tensor]


class AddedToStream(nn.Identity):
    """Pass on what attention and memories add to the stream. Training applies dropout here."""


class LtmLayer(nn.Module):
    """Apply attention within segments, then the memories, then the MLP, each added to its input: [B, T, D]."""

    def __init__(self, config: LtmConfig, index: int) -> None:
        super().__init__()
        self.config = config
        has_memory = config.has_memory(index)
        has_bank, learns = has_memory and config.memory_slots > 0, has_memory and config.test_time_memory != "none"

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

        self.added = AddedToStream()
        self.input_layernorm = norm()
        self.self_attn = SegmentAttention(config.decoder)
        self.memory_layernorm = norm() if has_bank or learns else None
        self.bank = MemoryBank(config) if has_bank else None
        self.test_time = TestTimeMemory(config) if learns else None
        self.post_attention_layernorm = norm() if config.intermediate_size else None
        self.mlp = GatedMLP(config.decoder) if config.intermediate_size else None

    def forward(
        self, x_BTD: Tensor, state: LayerState, angles: Angles, piece: Piece, track: bool
    ) -> tuple[Tensor, LayerState]:
        """Map a piece [B, T, D] to [B, T, D], and return the state after it too."""
        normed, after = self.input_layernorm(x_BTD), LayerState(state.segment, state.bank, state.test_time)
        if piece.spans:
            mixed_BTD = self.self_attn.whole(normed, *angles)
        else:
            mixed_BTD, after.segment = self.self_attn.part(normed, *angles, state.segment, ends=piece.ends_segment)
        x_BTD = x_BTD + self.added(mixed_BTD)
        if self.memory_layernorm is not None:
            h_BTD, read = self.memory_layernorm(x_BTD), []
            if self.bank is not None and state.bank is not None:
                h_BmtD = h_BTD.unflatten(1, (max(1, piece.spans), -1))
                out, after.bank = self.bank(h_BmtD, state.bank, piece.in_span, ends=piece.ends_span, track=track)
                read.append(out.flatten(1, 2))
            if self.test_time is not None and state.test_time is not None:
                out, after.test_time = self.test_time(h_BTD, state.test_time, piece.begin)
                read.append(out)
            x_BTD = x_BTD + self.added(sum(read[1:], start=read[0]))
        if self.mlp is not None and self.post_attention_layernorm is not None:
            x_BTD = x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))
        return x_BTD, after


class Ltm(nn.Module):
    bytes_per_token = 0  # of a state, beyond those of a segment
    inv_freq: Tensor

    def __init__(self, config: LtmConfig) -> None:
        super().__init__()
        self.config = config
        self.granularity: Granularity = config.gradient_checkpointing_granularity
        # Not filled on the meta device: there, torch's normal_ would import torch's compiler, which takes a second.
        empty = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=empty)
        self.layers = nn.ModuleList(LtmLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("inv_freq", inverse_frequencies(config.decoder), persistent=False)
        if not empty.is_meta:
            initialise(self)

    def new_state(self, batch_size: int = 1, slots: int | None = None) -> LtmState:
        """Return the state before the first token of so many sequences.

        Args:
            slots: The slots of each bank; None for the config's memory_slots.

        Raises:
            OptionError: The bounds of the config leave that many slots out.
        """
        config, weight = self.config, self.embed_tokens.weight
        if slots is not None:
            check_slots(config, slots)
        wide = torch.promote_types(weight.dtype, torch.float32)
        layers = []
        for layer in self.layers:
            assert isinstance(layer, LtmLayer)
            none = weight.new_zeros(batch_size, config.num_key_value_heads, 0, config.head_dim)
            state = LayerState(SegmentState(none, none))
            if layer.bank is not None:
                num = config.memory_slots if slots is None else slots
                state.bank = new_bank(config, batch_size, num, wide, weight.device)
            if layer.test_time is not None:
                state.test_time = layer.test_time.new_state(batch_size, wide)
            layers.append(state)
        return LtmState(layers)

    def forward(self, input_ids_BT: Tensor, state: LtmState | None = None) -> Tensor:
        """Map token ids, int64 [B, T] without padding, to the logits of the token after each [B, T, V].

        Args:
            state: What has been read before. It is replaced by what has been read after the tokens. None: the tokens
                begin sequences.

        Raises:
            InputsError: The state does not fit the model or the number of sequences.
        """
        logits_BTV: Tensor = self.lm_head(self.hidden(input_ids_BT, state))
        return logits_BTV

    @torch.no_grad()
    def step(self, tokens_BT: Tensor, state: LtmState) -> Tensor:
        """Read tokens, one or many of each sequence, and return the logits after the last one [B, V].

        The tokens follow those that the state has read. It is replaced by what has been read after them.

        Raises:
            InputsError: The state does not fit the model or the number of sequences.
        """
        if not state.num_tokens:
            state.model = digest_of(self.config, self.state_dict())
        logits_BV: Tensor = self.lm_head(self.hidden(tokens_BT, state)[:, -1])
        return logits_BV

    def hidden(self, input_ids_BT: Tensor, state: LtmState | None = None) -> Tensor:
        """Return the normalised output of the last layer [B, T, D], for logits at some tokens alone. See forward."""
        B, T = input_ids_BT.shape
        config, records = self.config, torch.is_grad_enabled()
        if state is not None:
            check_state(state, config, B)
        begin, layers = (0, self.new_state(B).layers) if state is None else (state.num_tokens, state.layers)
        # In training, all spans are read side by side. Otherwise the text is read as `step` and an engine read it.
        adapts = config.use_adaptive_compression and not (records and self.training)
        track = adapts or state is not None
        granularity = self.granularity if records else "none"
        x_BTD = self.embed_tokens(input_ids_BT)
        outputs = []
        for piece in pieces(begin, T, config, granularity == "block", one_by_one=adapts):
            part_BTD = x_BTD[:, piece.begin - begin : piece.end - begin]
            if records and piece.cuts_gradients:
                layers = [layer.changed(Tensor.detach) for layer in layers]
            if granularity == "block":
                output, layers = checkpoint(self._piece, part_BTD, layers, piece, track, use_reentrant=False)
            else:
                output, layers = self._piece(part_BTD, layers, piece, track)
            outputs.append(output)
            if adapts and piece.ends_span:
                for layer in layers:
                    layer.bank = None if layer.bank is None else adapted(layer.bank, config)
        if state is not None:  # all layers at once: an error on the way changes nothing
            state.layers, state.num_tokens = layers, begin + T
        normed_BTD: Tensor = self.norm(torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0])
        return normed_BTD

    def _piece(
        self, x_BTD: Tensor, layers: list[LayerState], piece: Piece, track: bool
    ) -> tuple[Tensor, list[LayerState]]:
        angles, after = self._angles(piece, x_BTD), []
        recompute = self.granularity == "layer" and torch.is_grad_enabled()
        for layer, state in zip(self.layers, layers, strict=True):
            if recompute:
                x_BTD, next_state = checkpoint(layer, x_BTD, state, angles, piece, track, use_reentrant=False)
            else:
                x_BTD, next_state = layer(x_BTD, state, angles, piece, track)
            after.append(next_state)
        return x_BTD, after

    def _angles(self, piece: Piece, x_BTD: Tensor) -> Angles:
        """Return the cosines and sines of the tokens' places in their segment, of one segment where there are many."""
        segment = self.config.attention_block_size
        first = piece.begin % segment
        last = segment if piece.spans else first + piece.end - piece.begin
        positions_T = torch.arange(first, last, device=x_BTD.device)
        return cosines_and_sines(self.inv_freq, 1.0, positions_T, x_BTD.dtype)

    def gradient_checkpointing_enable(self, granularity: Granularity = "block") -> None:
        """Have backward compute again what it needs: of each layer, or of blocks of segments.

        Raises:
            OptionError: The granularity is unknown.
        """
        if granularity not in ("layer", "block"):
            raise OptionError(f"granularity={granularity}: write layer or block")
        self.granularity = granularity

    def gradient_checkpointing_disable(self) -> None:
        """Have forward keep all activations."""
        self.granularity = "none"

    def get_memory_stats(self, state: LtmState) -> dict[str, Any]:
        """Return how the banks of a state are used. See whet.models.memory_bank.slots.memory_stats."""
        return memory_stats(state)

    def reduce_memory_slots(self, state: LtmState, slots: int | None = None) -> None:
        """Remove the least used slots of each sequence: the banks of the state are replaced.

        Args:
            slots: The slots that stay; None for half of them, within the bounds of the config.

        Raises:
            OptionError: The bounds of the config leave that many slots out, or the model has no bank.
        """
        least, check = self.config.min_memory_slots, self.config.memory_slots if slots is None else slots
        check_slots(self.config, check)
        change_banks(state, lambda bank: kept(bank, max(least, bank.ids_BS.shape[1] // 2) if slots is None else slots))

    def grow_memory_slots(self, state: LtmState, slots: int | None = None) -> None:
        """Add empty slots to each sequence: the banks of the state are replaced.

        Args:
            slots: The slots that there are then; None for the most that the config allows.

        Raises:
            OptionError: The bounds of the config leave that many slots out, or the model has no bank.
        """
        most = self.config.max_memory_slots
        check_slots(self.config, most if slots is None else slots)
        change_banks(state, lambda bank: grown(bank, most if slots is None else slots, most))

    def evict_memory_slots(self, state: LtmState, slots: int) -> None:
        """Clear the least used slots of each sequence, so many. They stay, and are written again.

        Raises:
            OptionError: There are not that many slots, or the model has no bank.
        """
        check_slots(self.config, self.config.memory_slots)
        if any(not 0 <= slots <= bank.ids_BS.shape[1] for bank in state.banks):
            raise OptionError(f"{slots} slots cannot be cleared; the bank has fewer")
        change_banks(state, lambda bank: cleared(bank, slots))

    def compress_memory(self, state: LtmState, tolerance: float | None = None) -> None:
        """Merge slots of nearly equal content, as whet.models.memory_bank.slots.compressed: banks are replaced.

        Args:
            tolerance: The relative distance, 0 to 1; None for the config's compression_tolerance.

        Raises:
            OptionError: The tolerance is out of range, or the model has no bank.
        """
        check_slots(self.config, self.config.memory_slots)
        distance = self.config.compression_tolerance if tolerance is None else tolerance
        if not 0 <= distance < 1:
            raise OptionError(f"tolerance {distance} is not within 0 to 1")
        change_banks(state, lambda bank: compressed(bank, distance, self.config.min_memory_slots))


@torch.no_grad()
def initialise(model: Ltm, generator: torch.Generator | None = None) -> None:
    """Draw new weights: normal ones with a standard deviation of 0.02, as GPT-2, and the memories' own.

    Layers that add to the stream begin smaller. Source: Radford et al., 2019, section 2.3.
    """
    memories = (MemoryBank, TestTimeMemory)
    own = {id(p) for module in model.modules() if isinstance(module, memories) for p in module.parameters()}
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and id(weight) not in own:
            into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = 0.02 / (2 * len(model.layers)) ** 0.5 if into_stream else 0.02
            nn.init.normal_(weight, std=std, generator=generator)
    for module in model.modules():
        if isinstance(module, memories):
            module.initialise(generator)
