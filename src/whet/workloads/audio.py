"""Make example sound for Hugging Face models: waveforms, or the spectrograms that their feature extractors make.

The shape comes from config.json and the sampling rate from preprocessor_config.json. Values are normal noise, since
feature extractors scale their outputs to a mean of 0 and a variance of 1.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.errors import TargetError
from whet.files import read_object
from whet.workloads.huggingface_options import Options

DEFAULT_SECONDS = 2.0
DEFAULT_RATE = 16_000  # samples per second, where preprocessor_config.json gives no rate

_FRAMES_A_SECOND = 100  # a spectrogram has one frame every 10 ms


def sound(config: Any, options: Options, generator: torch.Generator, directory: Path) -> dict[str, Tensor]:
    """Return one batch of sound for a model of one of KINDS, float32.

    Raises:
        TargetError: preprocessor_config.json is damaged, or `seconds` does not apply.
    """
    name, shape_of = KINDS[config.model_type]
    preprocessor = read_object(directory / "preprocessor_config.json", required=False)
    shape = shape_of(config, preprocessor, options.seconds)
    return {name: torch.randn(options.batch, *shape, generator=generator)}


def _waveform(config: Any, preprocessor: dict[str, Any], seconds: float | None) -> tuple[int, ...]:
    """Return the shape [samples] of a waveform."""
    rate = preprocessor.get("sampling_rate") or DEFAULT_RATE
    return (max(1, round(rate * (seconds or DEFAULT_SECONDS))),)


def _whisper(config: Any, preprocessor: dict[str, Any], seconds: float | None) -> tuple[int, ...]:
    """Return the shape [mel bins, frames] of Whisper's spectrograms, of the one length to which it pads every sound."""
    _check_fixed(config, seconds)
    return config.num_mel_bins, 2 * config.max_source_positions


def _spectrogram_transformer(config: Any, preprocessor: dict[str, Any], seconds: float | None) -> tuple[int, ...]:
    """Return the shape [frames, mel bins] of a spectrogram of the one length for which the model has positions."""
    _check_fixed(config, seconds)
    return config.max_length, config.num_mel_bins


def _speech_to_text(config: Any, preprocessor: dict[str, Any], seconds: float | None) -> tuple[int, ...]:
    """Return the shape [frames, features] of a spectrogram."""
    frames = round(_FRAMES_A_SECOND * (seconds or DEFAULT_SECONDS))
    return min(max(1, frames), config.max_source_positions), config.input_feat_per_channel * config.input_channels


def _wav2vec2_bert(config: Any, preprocessor: dict[str, Any], seconds: float | None) -> tuple[int, ...]:
    """Return the shape [frames, features], where each frame holds `stride` frames of the spectrogram side by side."""
    stride = preprocessor.get("stride") or 2
    frames = round(_FRAMES_A_SECOND / stride * (seconds or DEFAULT_SECONDS))
    return max(1, frames), config.feature_projection_input_dim


def _check_fixed(config: Any, seconds: float | None) -> None:
    """Raise TargetError where the user asks for a length of sound that the model cannot take."""
    if seconds is not None:
        raise TargetError(f"{config.model_type} takes sound of one length: seconds does not apply, leave it out")


_Shape = Callable[[Any, dict[str, Any], float | None], tuple[int, ...]]

_WAVEFORMS = (
    *("wav2vec2", "wav2vec2-conformer", "hubert", "wavlm", "unispeech", "unispeech-sat", "sew", "sew-d"),
    "data2vec-audio",
)

# By model_type in config.json: the name of the input, and its shape without the batch dimension.
KINDS: dict[str, tuple[str, _Shape]] = {
    **dict.fromkeys(_WAVEFORMS, ("input_values", _waveform)),
    "audio-spectrogram-transformer": ("input_values", _spectrogram_transformer),
    "whisper": ("input_features", _whisper),
    "speech_to_text": ("input_features", _speech_to_text),
    "wav2vec2-bert": ("input_features", _wav2vec2_bert),
}
