"""What a config of the long-term-memory family says, and what is refused."""

import json

import pytest
from pydantic import ValidationError

from ltm_models import SMALL
from whet.errors import TargetError
from whet.models.memory_bank import LtmConfig, load_ltm, read_config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory_slots": 4, "min_memory_slots": 5}, "memory_slots 4 is not within min_memory_slots 5"),
        ({"memory_slots": 0, "max_memory_slots": 4}, "memory_slots is 0, which leaves the bank out"),
        ({"min_memory_slots": 0}, "min_memory_slots is 0"),
        ({"memory_slots": 0, "use_adaptive_compression": True}, "use_adaptive_compression needs a bank"),
        ({"memory_layers": [2]}, "memory_layers names layers beyond the 2"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "not a multiple of num_key_value_heads"),
        ({"head_dim": 5}, "head_dim is odd"),
        ({"test_time_memory": "linear", "test_time_heads": 3}, "not a multiple of test_time_heads"),
        ({"test_time_memory": "deep"}, "test_time_memory"),
        ({"backpropagation_segments": 1}, "lets no gradient reach what is written"),
        ({"checkpoint_segments": 3}, "checkpoint_segments needs gradient_checkpointing_granularity"),
        ({"fp8_training": True}, "fp8_training: an ltm model does not compute it"),
        ({"tensor_parallel_size": 4}, "tensor_parallel_size"),
        ({"quantization_config": {"bits": 8}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"memory_compression_ratio": 0}, "memory_compression_ratio"),
        ({"attention_block_size": 0}, "attention_block_size"),
        ({"attention_block_size": 2**16, "memory_update_interval": 2**16}, "is 2^31 tokens or more"),
    ],
)
def test_what_would_not_be_computed_is_refused(tmp_path, changes, said):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "ltm"} | SMALL | changes))
    with pytest.raises(TargetError) as raised:
        read_config(tmp_path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_a_config_leaves_out():
    config = LtmConfig(**SMALL | {"fp8_training": False, "tensor_parallel_size": 1, "memory_compression_ratio": 0.4})
    assert (config.min_memory_slots, config.max_memory_slots, config.head_dim) == (1, 6, 8)
    assert (config.memory_width, config.span, config.has_memory(1)) == (13, 8, True)
    with pytest.raises(ValidationError):
        LtmConfig(**{key: value for key, value in SMALL.items() if key != "intermediate_size"})


def test_other_families_and_missing_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | SMALL))
    with pytest.raises(TargetError, match="model_type is 'llama'; a long-term-memory decoder's is ltm"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "ltm"} | SMALL))
    with pytest.raises(TargetError, match=r"has no model\.safetensors"):
        load_ltm(tmp_path)
