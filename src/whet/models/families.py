"""List the families of models that whet reads, trains and serves: `model_type` in config.json decides."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whet.errors import KernelsError, OptionError, TargetError
from whet.kernels.build import Library, library
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.kernels.linear.places import PRIVATE
from whet.models.config_file import FILE, read_json
from whet.models.decoder import files as decoder_files
from whet.models.decoder import fresh as decoder_fresh
from whet.models.decoder.native_layers import refusal
from whet.models.decoder.paged import PagedDecoder
from whet.models.decoder.share import Share, why_indivisible
from whet.models.hybrid import files as hybrid_files
from whet.models.hybrid import fresh as hybrid_fresh
from whet.models.hybrid.native import NativeDecoder, NativeHybrid
from whet.models.hybrid.native_share import NativeShare
from whet.models.memory_bank import files as ltm_files
from whet.models.memory_bank import fresh as ltm_fresh
from whet.models.memory_bank.native import NativeLtm
from whet.models.memory_bank.rows import RowsOfLtmStates
from whet.models.options import Dtype, KvBits, ServingOptions, WeightBits
from whet.models.selective import files as selective_files
from whet.models.selective import fresh as selective_fresh
from whet.models.selective.config import is_original
from whet.models.selective.native import NativeSelective
from whet.models.shared_weights import Measured, open_shared
from whet.models.shared_weights.identity import identity_of, known_files
from whet.models.shared_weights.opening import Build, outlines_of
from whet.models.state_rows import ServedInRows
from whet.models.step import ServedModel
from whet.models.tensor_files import ModelFiles
from whet.models.trainable import Trainable

_log = logging.getLogger("whet.models")

_AS_IS = {"bf16": (Kind.BF16, Kv.BF16), "fp32": (Kind.F32, Kv.F32)}
_QUANTISED = {"int8": Kind.S8, "int4": Kind.S4}
_TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}  # where a model runs in PyTorch


class Outline(NamedTuple):
    """Hold sizes of a model that is not loaded: `weight_bytes` are those of all weights, as they are kept."""

    weight_bytes: int
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class Family:
    """Describe how the directories of a family of models are read, and what runs them.

    Attributes:
        models: The names of its models, for messages.
        files: Reads its directories, and loads them as readable modules of PyTorch.
        native: Makes what runs a config with weights in whet's kernels, given the number formats and max_model_len.
        in_torch: Makes what runs a readable module where the kernels cannot, given the options.
        refusal: Returns why the kernels cannot run a config; None where they can.
        has_kv: Whether there are keys and values to round.
        torch_rounds_kv: Whether they are rounded in PyTorch too.
        trains: How such models are made, called and written by whet train; None where it leaves them to transformers.
        is_divisible: Whether several processes can run one model, each with a share of its weights.
    """

    models: str
    files: ModelFiles[Any, Any]
    native: Callable[..., ServedModel]
    in_torch: Callable[[Any, ServingOptions], ServedModel] = lambda model, options: ServedInRows(
        model, options.max_model_len
    )
    refusal: Callable[[Any], str | None] = lambda config: None
    has_kv: bool = True
    torch_rounds_kv: bool = False
    trains: Trainable | None = None
    is_divisible: bool = False

    def open(self, directory: Path | str, options: ServingOptions) -> ServedModel:
        """Load a directory for an engine: with whet's kernels, or in PyTorch if they cannot run the model.

        Raises:
            TargetError: The directory holds no model that can be run.
            OptionError: An option does not fit the family, or needs kernels that cannot run the model.
        """
        files = [] if options.shared_weights is None else known_files(directory)
        weights, build, kernels = self._prepared(directory, options)
        if options.shared_weights is None:
            model = build(weights, PRIVATE)
        else:
            identify = partial(identity_of, directory, files, options, kernels)
            model = open_shared(
                Path(options.shared_weights), weights, build, identify, lambda: known_files(directory) == files
            )
        return model if kernels is not None else self.in_torch(model, options)

    def outline(self, directory: Path | str, options: ServingOptions) -> Outline:
        """Return the sizes of what `open` would load, without reading the weights. Raises what `open` raises."""
        weights, build, _ = self._prepared(directory, options)
        measured = Measured()
        build(outlines_of(weights), measured)
        return Outline(measured.num_bytes, self.files.read_config(directory).vocab_size)

    def _prepared(
        self, directory: Path | str, options: ServingOptions
    ) -> tuple[Mapping[str, Tensor], Build[Any], Library | None]:
        """Return a directory's tensors, what makes a model of them, and the kernels that it runs on (None: PyTorch)."""
        if options.kv != "as-is" and not self.has_kv:
            raise OptionError(f"kv={options.kv}: a state-space model has no keys and values; leave kv out")
        config = self.files.read_config(directory)
        kernels = _serving_kernels(options, self.refusal(config), torch_rounds_kv=self.torch_rounds_kv)
        weights = self.files.read(directory, config)
        if kernels is None:
            dtype = _TORCH_DTYPES[options.dtype]
            return weights, lambda given, place: self.files.model_of(config, given, dtype, place), None
        kind, kv = _formats(options)
        native = partial(self.native, kind=kind, kv=kv, max_model_len=options.max_model_len)
        return weights, lambda given, place: native(config, given, kernels, place=place), kernels


_decoder = partial(
    Family,
    files=decoder_files.FILES,
    native=NativeDecoder,
    in_torch=lambda model, options: PagedDecoder(
        model, kv_dtype=torch.int8 if options.kv == "int8" else None, max_model_len=options.max_model_len
    ),
    refusal=refusal,
    torch_rounds_kv=True,
    trains=decoder_fresh.TRAINABLE,
    is_divisible=True,
)
_selective = partial(
    Family,
    files=selective_files.FILES,
    native=lambda config, weights, kernels, kv, **given: NativeSelective(config, weights, kernels, **given),
    has_kv=False,
    trains=selective_fresh.TRAINABLE,
)
_hybrid = partial(
    Family,
    files=hybrid_files.FILES,
    native=NativeHybrid,
    refusal=lambda config: refusal(config.decoder) if config.layers_with("attention") else None,
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _decoder(models="Llama 2 and 3, SmolLM"),
        "mistral": _decoder(models="Mistral"),
        "qwen2": _decoder(models="Qwen2, Qwen2.5"),
        "qwen3": _decoder(models="Qwen3"),
        "mamba": _selective(models="Mamba"),
        "mamba2": _selective(models="Mamba-2, Codestral Mamba"),
        "falcon_mamba": _selective(models="Falcon-Mamba"),
        "lfm2": _hybrid(models="LFM2", trains=hybrid_fresh.TRAINABLE["lfm2"]),
        "granitemoehybrid": _hybrid(models="Granite 4, dense", trains=hybrid_fresh.TRAINABLE["granitemoehybrid"]),
        "bamba": _hybrid(models="Bamba", trains=hybrid_fresh.TRAINABLE["bamba"]),
        "falcon_h1": _hybrid(models="Falcon-H1", trains=hybrid_fresh.TRAINABLE["falcon_h1"]),
        "nemotron_h": _hybrid(models="Nemotron-H, dense", trains=hybrid_fresh.TRAINABLE["nemotron_h"]),
        "ltm": Family(
            models="long-term memory",
            files=ltm_files.FILES,
            native=NativeLtm,
            in_torch=lambda model, options: RowsOfLtmStates(model, options.max_model_len),
            refusal=lambda config: refusal(config.decoder),
            trains=ltm_fresh.TRAINABLE,
        ),
    }
)
"""The family of each `model_type`. Add a line here for a new family."""


def model_type_of(raw: Mapping[str, Any]) -> str:
    """Return the key of FAMILIES for a config.json; it may be unknown. Mamba's original code names no model_type."""
    return "mamba" if is_original(raw) else str(raw.get("model_type"))


def open_model(
    directory: Path | str,
    *,
    dtype: Dtype = "bf16",
    weights: WeightBits = "as-is",
    kv: KvBits = "as-is",
    max_model_len: int | None = None,
    shared_weights: Path | str | None = None,
) -> ServedModel:
    """Load a model for an engine from a Hugging Face directory, with the options of ServingOptions.

    Raises:
        TargetError: The directory holds no model that can be run.
        OptionError: The value of an option is unknown.
    """
    return open_with(directory, ServingOptions(dtype, weights, kv, max_model_len, shared_weights))


def open_with(directory: Path | str, options: ServingOptions) -> ServedModel:
    """Load a model for an engine from a Hugging Face directory. Raises what `open_model` raises."""
    return _family(directory, options).open(directory, options)


def outline_of(directory: Path | str, options: ServingOptions) -> Outline:
    """Return the sizes of the model that `open_model` would load. The weights are not read. Raises what it raises."""
    return _family(directory, options).outline(directory, options)


def check_divisible(directory: Path | str, options: ServingOptions, num_ranks: int) -> None:
    """Check that so many processes can run a model together, before any of them loads its share.

    Raises:
        TargetError: The directory holds no model that can be run.
        OptionError: It cannot be divided so; the message says why.
    """
    family = _family(directory, options)
    asked = f"tensor_parallel_size={num_ranks}"
    if not family.is_divisible:
        known = ", ".join(name for name, one in FAMILIES.items() if one.is_divisible)
        named = model_type_of(read_json(directory))
        raise OptionError(f"{asked}: models of the family {named} cannot be divided; those of {known} can")
    config = family.files.read_config(directory)
    if (why := why_indivisible(config, num_ranks)) is not None:
        raise OptionError(f"{asked}: the model cannot be divided so: {why}")
    try:
        if (why := family.refusal(config)) is not None:
            raise KernelsError(why)
        library()
    except KernelsError as error:
        raise OptionError(f"{asked} needs whet's own kernels: {error}") from error


def open_share(directory: Path | str, options: ServingOptions, share: Share) -> NativeShare:
    """Load a process's share of a model that `check_divisible` has checked."""
    files, (kind, kv) = _family(directory, options).files, _formats(options)
    config = files.read_config(directory)
    weights = files.read(directory, config)
    return NativeShare(config, weights, library(), kind=kind, kv=kv, share=share, max_model_len=options.max_model_len)


def _family(directory: Path | str, options: ServingOptions) -> Family:
    """Return the family of a directory, once the options are known to have values that exist."""
    for name, choices in (
        ("dtype", ("bf16", "fp32")),
        ("weights", ("as-is", "int8", "int4")),
        ("kv", ("as-is", "int8")),
    ):
        value = getattr(options, name)
        if value not in choices:
            raise OptionError(f"{name}={value}: write {', '.join(choices)}")
    raw = read_json(directory)
    family = FAMILIES.get(model_type_of(raw))
    if family is None:
        known = ", ".join(f"{name} ({one.models})" for name, one in FAMILIES.items())
        path = Path(directory) / FILE
        raise TargetError(f"{path}: model_type is {raw.get('model_type')!r}; whet runs the families {known}")
    return family


def _serving_kernels(options: ServingOptions, why_not: str | None, *, torch_rounds_kv: bool) -> Library | None:
    """Return whet's kernels; None, with a warning, if they cannot run the model (`why_not`) or are not there.

    Raises:
        OptionError: Quantised weights, keys or values are asked for, which need the kernels.
    """
    try:
        if why_not is not None:
            raise KernelsError(why_not)
        return library()
    except KernelsError as error:
        for name, value in (("weights", options.weights), ("kv", "as-is" if torch_rounds_kv else options.kv)):
            if value != "as-is":
                raise OptionError(f"{name}={value} needs whet's own kernels: {error}") from error
        _log.warning("running in torch, several times slower than whet's own kernels: %s", error)
        return None


def _formats(options: ServingOptions) -> tuple[Kind, Kv]:
    kind, kv = _AS_IS[options.dtype]
    return _QUANTISED.get(options.weights, kind), Kv.S8 if options.kv == "int8" else kv
