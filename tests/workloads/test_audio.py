"""Models of sound by hf:DIR: tiny ones with random weights, which whet must call as their feature extractors would."""

import json
from pathlib import Path

import pytest
import torch

from whet.core.artefact import load
from whet.core.workload import examine
from whet.errors import TargetError
from whet.techniques.technique import Candidate
from whet.workloads import resolve

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
WAVE = {
    **SMALL,
    "vocab_size": 12,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
SPEECH = {
    "vocab_size": 60, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_start_token_id": 1,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_source_positions": 20, "max_target_positions": 12,
}  # fmt: skip
AST = {**SMALL, "max_length": 24, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8}

MODELS = {
    "Wav2Vec2ForCTC": ("Wav2Vec2Config", WAVE, {"input_values": (2, 8000)}),
    "HubertForCTC": ("HubertConfig", WAVE, {"input_values": (2, 8000)}),
    "WavLMForSequenceClassification": ("WavLMConfig", WAVE, {"input_values": (2, 8000)}),
    "ASTForAudioClassification": ("ASTConfig", AST, {"input_values": (2, 24, 16)}),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {**SPEECH, "num_mel_bins": 8},
        {"input_features": (2, 8, 40), "decoder_input_ids": (2, 12)},
    ),
    "WhisperForAudioClassification": ("WhisperConfig", {**SPEECH, "num_mel_bins": 8}, {"input_features": (2, 8, 40)}),
    "Speech2TextForConditionalGeneration": (
        "Speech2TextConfig",
        {**SPEECH, "input_feat_per_channel": 8, "input_channels": 1, "conv_channels": 16, "max_source_positions": 200},
        {"input_features": (2, 50, 8), "decoder_input_ids": (2, 12)},
    ),
    "Wav2Vec2BertForCTC": (
        "Wav2Vec2BertConfig",
        {**SMALL, "vocab_size": 12, "feature_projection_input_dim": 10},
        {"input_features": (2, 25, 10)},
    ),
}
FIXED = ("AST", "Whisper")


def saved(directory: Path, name: str, config: str, settings: dict[str, object]) -> Path:
    torch.manual_seed(0)
    getattr(transformers, name)(getattr(transformers, config)(**settings)).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("name", MODELS)
def test_sound_of_the_right_shape(name: str, tmp_path: Path) -> None:
    config, settings, shapes = MODELS[name]
    directory = saved(tmp_path, name, config, settings)
    workload = resolve(f"hf:{directory}?batch=2{'' if name.startswith(FIXED) else '&seconds=0.5'}")
    assert {key: tuple(x.shape) for key, x in workload.inputs[0].items()} == shapes
    assert not torch.equal(*(next(iter(batch.values())) for batch in workload.inputs[:2]))
    examine(workload)


@pytest.mark.parametrize("name", ["Wav2Vec2ForCTC", "WhisperForConditionalGeneration", "ASTForAudioClassification"])
def test_a_model_of_sound_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    config, settings, _ = MODELS[name]
    workload = resolve(f"hf:{saved(tmp_path / 'hf', name, config, settings)}")
    examined = examine(workload)
    artefact = load(Candidate.original(examined).save(tmp_path / "artefact"))
    with torch.no_grad():
        wanted = workload.model(**workload.inputs[1]).logits
    torch.testing.assert_close(artefact(**workload.inputs[1]).logits, wanted, rtol=1e-4, atol=1e-4)


def test_the_sampling_rate_is_that_of_the_feature_extractor(tmp_path: Path) -> None:
    directory = saved(tmp_path, "Wav2Vec2ForCTC", "Wav2Vec2Config", WAVE)
    assert resolve(f"hf:{directory}").inputs[0]["input_values"].shape == (1, 32_000)
    (directory / "preprocessor_config.json").write_text(json.dumps({"sampling_rate": 8000, "feature_size": 1}))
    assert resolve(f"hf:{directory}?seconds=1.5").inputs[0]["input_values"].shape == (1, 12_000)
    (directory / "preprocessor_config.json").write_text("{")
    with pytest.raises(TargetError, match=r"preprocessor_config.json cannot be read"):
        resolve(f"hf:{directory}")


def test_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    wave = saved(tmp_path / "wave", "Wav2Vec2ForCTC", "Wav2Vec2Config", WAVE)
    with pytest.raises(TargetError, match="takes sound: seq does not apply, give seconds"):
        resolve(f"hf:{wave}?seq=8")
    with pytest.raises(TargetError, match=r"seconds=0: "):
        resolve(f"hf:{wave}?seconds=0")
    config, settings, _ = MODELS["WhisperForConditionalGeneration"]
    whisper = saved(tmp_path / "whisper", "WhisperForConditionalGeneration", config, settings)
    assert resolve(f"hf:{whisper}?seq=4").inputs[0]["decoder_input_ids"].shape == (1, 4)
    with pytest.raises(TargetError, match="whisper takes sound of one length: seconds does not apply"):
        resolve(f"hf:{whisper}?seconds=3")
    with pytest.raises(TargetError, match="seq=13 is more than the 12 tokens that"):
        resolve(f"hf:{whisper}?seq=13")


def test_sound_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    settings = {"hidden_size": 16, "num_filters": 4, "num_residual_layers": 1, "codebook_size": 8, "codebook_dim": 16}
    directory = saved(tmp_path, "EncodecModel", "EncodecConfig", settings)
    with pytest.raises(TargetError, match=r"EncodecModel takes input_values; .* the sound of .*whisper: write a func"):
        resolve(f"hf:{directory}")
