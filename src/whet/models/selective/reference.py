"""Predict the next token with a selective state-space model, in readable PyTorch over whet's operators.

The modules have the same names as those of transformers (below its prefix `backbone.`), so that weights can be loaded
without renaming.

Shape suffixes: B batch, T tokens, D model width, V vocabulary.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from whet.models.recurrent import Recurrent
from whet.models.selective.config import SelectiveConfig
from whet.models.selective.documents import DocumentRows
from whet.models.selective.mixer import Mamba1Mixer, Mamba2Mixer
from whet.models.selective.state import LayerState, SelectiveState, check_state, new_state

# Parameters that stay in float32 whatever the matrices are: rounding them changes what is remembered for how long.
_KEPT_WIDE = ("A_log", ".D", "dt_bias", "dt_proj.bias", "conv1d.weight", "conv1d.bias", "norm.weight", "norm_f.weight")


def is_kept_wide(name: str) -> bool:
    return name.endswith(_KEPT_WIDE)


class Block(nn.Module):
    """Add what the mixer makes of the normalised input: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mixer = Mamba2Mixer(config) if config.has_heads else Mamba1Mixer(config)

    def forward(self, x_BTD: Tensor, state: LayerState | None = None, documents: DocumentRows | None = None) -> Tensor:
        """Map [B, T, D] to [B, T, D]. The residual is in the wider type of norms. A state is read and replaced."""
        normed_BTD = self.norm(x_BTD).to(self.mixer.in_proj.weight.dtype)
        mixed_BTD: Tensor = (
            self.mixer(normed_BTD, state) if documents is None else documents.each(self.mixer, normed_BTD)
        )
        return x_BTD + mixed_BTD


class Selective(Recurrent[SelectiveState]):
    bytes_per_token = 0  # of a state, which has a fixed size

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__()
        self.config = config
        # Not filled on the meta device: there, torch's normal_ would import torch's compiler, which takes a second.
        empty = torch.empty(config.vocab_size, config.hidden_size)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, _weight=empty)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm_f = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embeddings.weight
        if not empty.is_meta:
            initialise(self)

    def new_state(self, batch_size: int = 1) -> SelectiveState:
        weight = self.embeddings.weight
        return new_state(self.config, batch_size, weight.dtype, weight.device)

    def _read(self, input_ids_BT: Tensor, state: SelectiveState | None, documents_BT: Tensor | None) -> Tensor:
        if state is not None:
            check_state(state, self.config, len(input_ids_BT))
        documents = None if documents_BT is None else DocumentRows.of(documents_BT)
        x_BTD = self.embeddings(input_ids_BT).to(self.norm_f.weight.dtype)
        after = None if state is None else [replace(layer) for layer in state.layers]
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, None if after is None else after[index], documents)
        if state is not None and after is not None:  # all layers at once: an error on the way changes nothing
            state.layers, state.num_tokens = after, state.num_tokens + input_ids_BT.shape[1]
        normed_BTD: Tensor = self.norm_f(x_BTD).to(self.lm_head.weight.dtype)
        return normed_BTD


def initialise(model: Selective, generator: torch.Generator | None = None) -> None:
    """Draw new weights as mamba_ssm/models/mixer_seq_simple.py does: the mixers' own, and Gaussian embeddings."""
    nn.init.normal_(model.embeddings.weight, std=0.02, generator=generator)
    if not model.config.tie_word_embeddings:
        nn.init.normal_(model.lm_head.weight, std=0.02, generator=generator)
    for module in model.modules():
        if isinstance(module, Mamba1Mixer | Mamba2Mixer):
            module.initialise(generator)
