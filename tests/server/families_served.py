"""Small models of every family that an engine runs. A family that is added here runs through all tests of families.

Each has random weights, the same in every process, a vocabulary of VOCAB tokens, and takes sequences of LONGEST tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from hash_model import HashModel
from recurrent_model import BankCell, GatedCell, RecurrentModel, WithBlocks
from torch import Tensor

from whet.kernels.build import library
from whet.kernels.linear.packed import Kind
from whet.kernels.paged_attention.native import Kv
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.files import weight_shapes
from whet.models.hybrid import Hybrid
from whet.models.hybrid.config_files import FILES as HYBRIDS
from whet.models.hybrid.native import NativeDecoder, NativeHybrid
from whet.models.memory_bank import Ltm, LtmConfig
from whet.models.memory_bank.native import NativeLtm
from whet.models.memory_bank.rows import RowsOfLtmStates
from whet.models.selective import Selective, SelectiveConfig
from whet.models.selective.native import NativeSelective
from whet.models.state_rows import ServedInRows
from whet.models.step import Allocation, ServedModel, StepBatch

VOCAB = 40
LONGEST = 96  # the fewest tokens that a sequence of any of them may have
_SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
_HYBRID = {
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": LONGEST,
}
_LFM2 = {"model_type": "lfm2", "layer_types": ["full_attention", "conv"], "block_auto_adjust_ff_dim": False}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 12, "mamba_n_groups": 2}
_HEADS = {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 12}


def _selective(**config: Any) -> Selective:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = Selective(SelectiveConfig.model_validate({**_SMALL, **config})).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def _native_selective(kind: Kind = Kind.F32, **config: Any) -> NativeSelective:
    model = _selective(**config)
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    return NativeSelective(model.config, weights, library(), kind=kind)


def _llama() -> NativeDecoder:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = DecoderConfig.model_validate({**_SMALL, **heads, "intermediate_size": 48})
    draw = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in weight_shapes(config).items():
        spread = torch.randn(shape, generator=draw) * (2.0 / shape[-1] ** 0.5)
        weights[name] = 1 + 0.2 * spread if "norm" in name else spread
    return NativeDecoder(config, weights, library(), kind=Kind.F32, kv=Kv.F32)


def _hybrid(**config: Any) -> Hybrid:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        file = HYBRIDS[config["model_type"]].model_validate({**_SMALL, **_HYBRID, **config})
        model = Hybrid(file.plan()).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def _native_hybrid(kind: Kind = Kind.F32, kv: Kv = Kv.F32, **config: Any) -> NativeHybrid:
    model = _hybrid(**config)
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    return NativeHybrid(model.config, weights, library(), kind=kind, kv=kv)


def _ltm(**config: Any) -> Ltm:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "attention_block_size": 12}
    with torch.random.fork_rng():
        torch.manual_seed(2)
        sizes = {**_SMALL, **heads, "intermediate_size": 48, "memory_slots": 4, "test_time_memory": "mlp", **config}
        model = Ltm(LtmConfig.model_validate(sizes)).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def _native_ltm(kind: Kind = Kind.F32, kv: Kv = Kv.F32, **config: Any) -> NativeLtm:
    model = _ltm(**config)
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    return NativeLtm(model.config, weights, library(), kind=kind, kv=kv)


FAMILIES: dict[str, Callable[[], ServedModel]] = {
    "hashes": partial(HashModel, max_model_len=LONGEST),
    "llama": _llama,
    "mamba": partial(_native_selective, model_type="mamba"),
    "mamba int8": partial(_native_selective, Kind.S8, model_type="mamba"),
    "mamba2": partial(_native_selective, model_type="mamba2", **_HEADS),
    "falcon_mamba": partial(_native_selective, model_type="falcon_mamba"),
    "mamba2 in torch": lambda: ServedInRows(_selective(model_type="mamba2", **_HEADS, num_hidden_layers=1)),
    "lfm2": partial(_native_hybrid, **_LFM2),
    "granitemoehybrid": partial(
        _native_hybrid,
        model_type="granitemoehybrid",
        num_local_experts=0,
        shared_intermediate_size=48,
        layer_types=["mamba", "attention"],
        **_MAMBA,
    ),
    "bamba int8": partial(_native_hybrid, Kind.S8, Kv.S8, model_type="bamba", attn_layer_indices=[0], **_MAMBA),
    "falcon_h1": partial(_native_hybrid, model_type="falcon_h1", mamba_d_ssm=64, key_multiplier=0.5, **_MAMBA),
    "nemotron_h": partial(
        _native_hybrid,
        model_type="nemotron_h",
        layers_block_type=["mamba", "mlp", "attention", "mlp"],
        head_dim=16,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=12,
        n_groups=2,
    ),
    "ltm": _native_ltm,
    "ltm int8": partial(_native_ltm, Kind.S8, Kv.S8, memory_slots=0, test_time_memory="linear"),
    "ltm in torch": lambda: RowsOfLtmStates(_ltm(num_hidden_layers=1)),
    "lfm2 in torch": lambda: ServedInRows(_hybrid(**_LFM2)),
    "recurrence": partial(RecurrentModel, GatedCell, max_model_len=LONGEST),
    "memory bank": partial(RecurrentModel, BankCell, max_model_len=LONGEST),
    "recurrence with blocks": partial(WithBlocks, max_model_len=LONGEST),
}


def logits_after(make: Callable[[], ServedModel]) -> Callable[[Sequence[int]], Tensor]:
    """What gives the logits after some tokens: one step of another such model, which reads nothing else."""
    model = make()
    known = getattr(model, "logits_after", None)
    if known is not None:
        return known
    num_blocks = -(-LONGEST // model.block_size) if model.bytes_per_block else 0
    model.allocate(Allocation(num_blocks=num_blocks, num_states=1 if model.bytes_per_state else 0))

    def found(token_ids: Sequence[int]) -> Tensor:
        count = np.array([len(token_ids)], np.int32)
        batch = StepBatch(
            token_ids=np.array(token_ids, np.int32),
            positions=np.arange(len(token_ids), dtype=np.int32),
            query_start=np.array([0, len(token_ids)], np.int32),
            context_len=count,
            settled_len=count,
            block_tables=np.arange(num_blocks, dtype=np.int32)[None],
            state_rows=np.zeros(1, np.int32),
            logit_rows=count - 1,
        )
        with torch.inference_mode():
            return model.step(batch)[0].clone()

    return found
