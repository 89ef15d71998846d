"""Predict the next token with a selective state-space model, in readable PyTorch over whet's operators.

The modules have the same names as those of transformers (below its prefix `backbone.`), so that weights can be loaded
without renaming.

Shape suffixes: B batch, T tokens, D model width, V vocabulary.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from whet.errors import InputsError
from whet.models.selective.config import SelectiveConfig, read_config
from whet.models.selective.documents import DocumentRows
from whet.models.selective.files import read_weights
from whet.models.selective.mixer import Mamba1Mixer, Mamba2Mixer
from whet.models.selective.state import LayerState, SelectiveState, check_state, new_state
from whet.models.tensor_files import filled

# Parameters that stay in float32 whatever the matrices are: rounding them changes what is remembered for how long.
_KEPT_WIDE = ("A_log", ".D", "dt_bias", "dt_proj.bias", "conv1d.weight", "conv1d.bias", "norm.weight", "norm_f.weight")


def is_kept_wide(name: str) -> bool:
    """Return whether a parameter of this name stays in float32 where the matrices are rounded."""
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


class Selective(nn.Module):
    """Predict the next token after each token."""

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
        """Return the state before the first token of so many sequences."""
        weight = self.embeddings.weight
        return new_state(self.config, batch_size, weight.dtype, weight.device)

    def forward(
        self, input_ids_BT: Tensor, state: SelectiveState | None = None, documents_BT: Tensor | None = None
    ) -> Tensor:
        """Map token ids, int64 [B, T] without padding, to the logits of the token after each [B, T, V].

        Args:
            state: What has been read before. It is replaced by what has been read after the tokens. None: the tokens
                begin sequences.
            documents_BT: The number of each token's document, for rows that hold several. Each of them begins a
                sequence. None: a row is one.

        Raises:
            InputsError: The state does not fit the model or the number of sequences, or comes with documents.
        """
        logits_BTV: Tensor = self.lm_head(self._read(input_ids_BT, state, documents_BT))
        return logits_BTV

    @torch.no_grad()
    def step(self, tokens_BT: Tensor, state: SelectiveState) -> Tensor:
        """Read tokens, one or many of each sequence, and return the logits after the last one [B, V].

        The tokens follow those that the state has read. It is replaced by what has been read after them.

        Raises:
            InputsError: The state does not fit the model or the number of sequences.
        """
        logits_BV: Tensor = self.lm_head(self._read(tokens_BT, state)[:, -1])
        return logits_BV

    def _read(self, input_ids_BT: Tensor, state: SelectiveState | None, documents_BT: Tensor | None = None) -> Tensor:
        """Return the normalised output of the last layer [B, T, D]."""
        if state is not None:
            check_state(state, self.config, len(input_ids_BT))
            if documents_BT is not None:
                raise InputsError("documents begin without a state; leave one of state and documents_BT out")
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
    """Draw new weights as the original code does: the mixers' own, and normal ones for embeddings.

    Source: mamba_ssm/models/mixer_seq_simple.py.
    """
    nn.init.normal_(model.embeddings.weight, std=0.02, generator=generator)
    if not model.config.tie_word_embeddings:
        nn.init.normal_(model.lm_head.weight, std=0.02, generator=generator)
    for module in model.modules():
        if isinstance(module, Mamba1Mixer | Mamba2Mixer):
            module.initialise(generator)


def load_selective(directory: Path | str, dtype: torch.dtype = torch.float32) -> Selective:
    """Load the model in a directory (config.json and safetensors), in eval mode.

    Its weights are copies: they do not depend on the files. Rates, step biases, convolutions and norms stay in float32.

    Args:
        directory: A directory of transformers, or of the original code with its weights as safetensors.
        dtype: The type of the matrices.

    Raises:
        TargetError: A file is missing or damaged, the weights do not fit, or the model is of another family.
    """
    config = read_config(directory)
    wide = torch.promote_types(dtype, torch.float32)
    weights = {
        name: tensor.to(wide if is_kept_wide(name) else dtype, copy=True)
        for name, tensor in read_weights(directory, config).items()
    }
    return filled(lambda: Selective(config), weights, "embeddings", tied=config.tie_word_embeddings)
