"""Build a workload from a Hugging Face directory: `hf:DIR` or `hf:DIR?batch=8&seq=256`.

The model is built by the class that its config.json names, and runs in fp32. Nothing is downloaded and no code from the
directory is run. There is no quality: a variant is judged by how closely it agrees with the original.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.workload import Workload
from whet.errors import MissingExtra, TargetError, foreign
from whet.workloads import audio, text_lengths
from whet.workloads.huggingface_options import Options, check_directory, parse_options
from whet.workloads.text_encoder import is_reranker

DEFAULT_TOKENS = 128
DEFAULT_IMAGE_SIZE = 224  # pixels
NUM_BATCHES = 4
_LIMITS = ("max_position_embeddings", "n_positions", "max_target_positions")  # names of the largest number of tokens


def build(directory_and_options: str, sizes: Mapping[str, int] = MappingProxyType({})) -> Workload:
    """Return the workload of `DIR?batch=B&seq=T&seconds=S`, with random inputs from a fixed seed.

    `sizes` has values for `batch` and `seq` that replace these options.

    Raises:
        TargetError: The directory or an option is wrong.
        MissingExtra: transformers is not installed.
    """
    name, _, query = directory_and_options.partition("?")
    if not name:
        raise TargetError("hf: lacks a directory: hf:DIR")
    options = parse_options(query).model_copy(update=dict(sizes))
    directory = Path(name).expanduser()
    check_directory(directory)
    model = load_model(directory)
    generator = torch.Generator().manual_seed(0)
    inputs = [example_inputs(model, options, generator, directory) for _ in range(NUM_BATCHES)]
    return Workload(
        model=model,
        inputs=inputs,
        calibration=_of_many_lengths(inputs, model, options, directory),
        name=directory.resolve().name,
    )


def _of_many_lengths(
    inputs: Sequence[dict[str, Tensor]], model: nn.Module, options: Options, directory: Path
) -> list[dict[str, Tensor]]:
    """Return texts of random lengths, padded, for calibration and judging; other inputs as they are.

    Times are measured on full texts, whose work is known. Each batch has one full text. With one text a batch, twice as
    many batches hold texts of random lengths, and a full one comes last.
    """
    if text_lengths.MASK not in inputs[0]:
        return []
    config: Any = model.config
    generator = torch.Generator().manual_seed(1)
    side, pad_id = text_lengths.padding_side(directory), config.get_text_config().pad_token_id or 0
    is_single = options.batch == 1
    num_batches, first = (2 * NUM_BATCHES, 0) if is_single else (NUM_BATCHES, 1)
    texts = [example_inputs(model, options, generator, directory) for _ in range(num_batches)]
    cut = [text_lengths.with_lengths(b, generator, side=side, pad_id=pad_id, first=first) for b in texts]
    return [*cut, *(inputs[:1] if is_single else [])]


def example_inputs(
    model: nn.Module, options: Options, generator: torch.Generator, directory: Path
) -> dict[str, Tensor]:
    """Return one batch of what the model's forward takes: text, images, both, or sound.

    Raises:
        TargetError: The model takes something else, or an option does not apply to it.
    """
    parameters = inspect.signature(model.forward).parameters
    config: Any = model.config
    if config.model_type in audio.KINDS:
        inputs = audio.sound(config, options, generator, directory)
        if "decoder_input_ids" in parameters:
            inputs["decoder_input_ids"] = _text(config, options, generator)
        elif options.seq is not None:
            raise TargetError(f"{type(model).__name__} takes sound: seq does not apply, give seconds")
        return inputs
    if options.seconds is not None:
        raise TargetError(f"{type(model).__name__} takes no sound: seconds does not apply, leave it out")
    wanted = {"pixel_values", "input_ids"} & set(parameters)
    if getattr(config, "vision_config", None) is None:  # then the model takes one kind of data and names it
        wanted &= {model.main_input_name}
    if not wanted:
        raise TargetError(
            f"{type(model).__name__} takes {model.main_input_name}; whet makes example inputs for text (input_ids), "
            f"images (pixel_values) and the sound of {', '.join(sorted(audio.KINDS))}: "
            "write a function that returns (model, inputs) and name it as FILE.py:FUNCTION"
        )
    inputs = {}
    if "pixel_values" in wanted:
        inputs["pixel_values"] = _image(getattr(config, "vision_config", None) or config, options, generator)
    if "input_ids" in wanted:
        text_config = config.get_text_config()
        inputs["input_ids"] = _text(text_config, options, generator)
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
            inputs["decoder_input_ids"] = _text(text_config, options, generator)
        if "attention_mask" in parameters and not _is_decoder_only(config):
            # Encoders are served with a mask. In a causal decoder a mask only prevents the fast kernels.
            inputs[text_lengths.MASK] = torch.ones_like(inputs["input_ids"])
        if "token_type_ids" in parameters and is_reranker(config) and getattr(config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = _second_half(inputs["input_ids"])  # it tells the query from the text
    elif options.seq is not None:
        raise TargetError(f"{type(model).__name__} takes images: seq does not apply, leave it out")
    return inputs


def _image(config: Any, options: Options, generator: torch.Generator) -> Tensor:
    """Return noise, fp32 [batch, channels, height, width]."""
    size = getattr(config, "image_size", None) or DEFAULT_IMAGE_SIZE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(config, "num_channels", None) or 3
    return torch.randn(options.batch, channels, height, width, generator=generator)


def _text(config: Any, options: Options, generator: torch.Generator) -> Tensor:
    """Return random token ids, int64 [batch, seq]."""
    limits = (getattr(config, name, None) for name in _LIMITS)
    limit = next((size for size in limits if size), None)
    if limit and options.seq and options.seq > limit:
        raise TargetError(
            f"seq={options.seq} is more than the {limit} tokens that this model takes (max_position_embeddings); "
            "give a smaller seq"
        )
    num_tokens = options.seq or min(DEFAULT_TOKENS, limit or DEFAULT_TOKENS)
    padding = getattr(config, "pad_token_id", None)
    input_ids = torch.randint(config.vocab_size, (options.batch, num_tokens), generator=generator)
    # A padding token in the middle of a text would be masked by some models.
    return input_ids if padding is None else input_ids.where(input_ids != padding, (padding + 1) % config.vocab_size)


def _second_half(input_ids: Tensor) -> Tensor:
    """Return 0 for the tokens of a first text and 1 for those of a second, as long as the first: int64 [batch, seq]."""
    places = torch.arange(input_ids.shape[1])
    return (places >= input_ids.shape[1] // 2).long().expand_as(input_ids).contiguous()


def _is_decoder_only(config: Any) -> bool:
    """Return whether the model is a causal decoder without an encoder."""
    from transformers.models.auto import modeling_auto  # loading the model has imported it already

    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return config.model_type in causal and config.model_type not in masked and not config.is_encoder_decoder


def load_model(directory: Path) -> nn.Module:
    """Return the model, in fp32 and eval mode, without a cache."""
    with quiet():
        transformers = transformers_package()
        with foreign(TargetError, f"transformers cannot load {directory}"):
            config = config_in(transformers, directory)
            for part in {id(c): c for c in (config, config.get_text_config())}.values():
                part.use_cache = False  # a cache is no tensor, and a single call needs none
            model, missing = with_weights(_class_of(transformers, config), directory, config)
    if missing:
        raise TargetError(
            f"the weights in {directory} lack {missing[0]}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + f" of {type(model).__name__}, which would be random; save the whole model with save_pretrained"
        )
    loaded: nn.Module = model.eval()
    return loaded


def config_in(transformers: Any, directory: Path) -> Any:
    """Return transformers' config of a directory. No code of the directory is run."""
    return transformers.AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


def with_weights(model_class: Any, directory: Path, config: Any) -> tuple[Any, list[str]]:
    """Return a model of transformers in fp32, with weights from safetensors alone.

    Returns:
        The model, and the names of the weights that the directory lacks, in order; they are random.
    """
    model, info = model_class.from_pretrained(
        directory,
        config=config,
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    return model, sorted(info["missing_keys"])


def _class_of(transformers: Any, config: Any) -> Any:
    """Return the class named in config.json's architectures, or AutoModel where transformers has no such class."""
    name = (config.architectures or [""])[0]
    return getattr(transformers, name, None) or transformers.AutoModel


def transformers_package() -> Any:
    """Return the package transformers, or raise MissingExtra where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("transformers", "hf", "hf:DIR") from error
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off progress bars and log lines of transformers and what it imports, and restore them afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        bars = transformers_package().utils.logging
        had_bars = bars.is_progress_bar_enabled()
        bars.disable_progress_bar()
        try:
            yield
        finally:
            if had_bars:
                bars.enable_progress_bar()
    finally:
        logging.disable(before)
