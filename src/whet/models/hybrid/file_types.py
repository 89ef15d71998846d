"""Define what the config.json files of all families of hybrid models have in common. See config_files.py."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from whet.models.config_file import HeadSize, Layers, Positive, Size, set_keys
from whet.models.decoder.config import DecoderConfig, Rope, fill_in_heads, rope_parameters
from whet.models.hybrid.config import HybridConfig, Mixer, Multipliers
from whet.models.selective.config import SelectiveConfig, number_of, written_number

Factor = Annotated[float, Field(allow_inf_nan=False)]

_MIXERS: Mapping[str, Mixer] = MappingProxyType(
    {
        "full_attention": "attention",
        "attention": "attention",
        "linear_attention": "mamba",
        "mamba": "mamba",
        "conv": "conv",
    }
)


class HybridFile(BaseModel):
    """Hold what the files of all families say. Other keys are ignored. The defaults are those of most families."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    rope_theta: ClassVar[float] = 10_000.0  # where the file names none
    rotates_partly: ClassVar[bool] = False
    unread: ClassVar[tuple[str, ...]] = ()  # what transformers does not read in the family's files
    names: ClassVar[Mapping[str, str]] = MappingProxyType({})  # of fields that they name otherwise, and as named here

    model_type: str
    hidden_act: Literal["silu"] = "silu"
    vocab_size: Size = 128_000
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_hidden_layers: Layers = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 8
    head_dim: HeadSize
    max_position_embeddings: Size
    rms_norm_eps: Positive = 1e-5
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_parameters: Rope

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        config = dict(given)
        cls.rename(config)
        if config.get("num_key_value_heads", 0) is None:
            config["num_key_value_heads"] = config.get(
                "num_attention_heads", cls.model_fields["num_attention_heads"].default
            )
        config = set_keys(config)
        for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"):
            config.setdefault(name, cls.model_fields[name].default)
        fill_in_heads(config)
        config["rope_parameters"] = rope_parameters(config, partly=cls.rotates_partly)
        if isinstance(config["rope_parameters"], dict):
            config["rope_parameters"].setdefault("rope_theta", cls.rope_theta)
        return config

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        """Give fields that a family's files name otherwise the names here, in place."""
        for name in cls.unread:
            config.pop(name, None)
        for theirs, ours in cls.names.items():
            if config.get(theirs) is not None:
                config[ours] = config[theirs]

    def decoder(self, model_type: Literal["llama", "qwen3"] = "llama", **changes: Any) -> DecoderConfig:
        """Return the decoder whose attention and MLP the layers have. Of model_type qwen3, heads are normalised."""
        fields = {name: getattr(self, name) for name in HybridFile.model_fields if name in DecoderConfig.model_fields}
        return DecoderConfig(**{**fields, "model_type": model_type, **changes})

    def keys(self) -> dict[str, Any]:
        """Return the keys of a config.json, as transformers writes them."""
        return self.model_dump(mode="json", exclude_none=True)

    def planned(self, mixers: tuple[tuple[Mixer, ...], ...], **changes: Any) -> HybridConfig:
        """Return a model with the sizes of the file and these mixers. `changes` are other fields of a HybridConfig."""
        fields: dict[str, Any] = {"decoder": self.decoder(), "multipliers": Multipliers(scores=self.head_dim**-0.5)}
        return HybridConfig(model_type=self.model_type, keys=self.keys(), mixers=mixers, **(fields | changes))

    def plan(self) -> HybridConfig:
        """Return what the file describes.

        Raises:
            ValueError: Sizes do not fit each other, or something is not supported.
        """
        raise NotImplementedError

    @model_validator(mode="after")
    def _check(self) -> "HybridFile":
        try:
            self.plan()
        except ValidationError as error:  # of a type that the plan is made of
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
        return self


class MambaFile(HybridFile):
    """Hold what the files of families with Mamba-2 say."""

    mamba_n_heads: Size = 128
    mamba_d_head: Size | Literal["auto"] = "auto"
    mamba_n_groups: Size = 1
    mamba_d_state: Size = 256
    mamba_d_conv: Annotated[int, Field(gt=0, le=64)] = 4
    mamba_expand: Size = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[float, float] = (0.0, math.inf)

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        super().rename(config)
        if isinstance(limits := config.get("time_step_limit"), list):
            config["time_step_limit"] = tuple(number_of(limit) for limit in limits)

    def keys(self) -> dict[str, Any]:
        return {**super().keys(), "time_step_limit": [written_number(limit) for limit in self.time_step_limit]}

    def planned(
        self, mixers: tuple[tuple[Mixer, ...], ...], *, mamba: SelectiveConfig | None = None, **changes: Any
    ) -> HybridConfig:
        changes = {"mamba_out_bias": self.mamba_proj_bias, **changes}
        return super().planned(mixers, mamba=mamba or self.mamba(), **changes)

    def mamba(self, inner: int | None = None) -> SelectiveConfig:
        """Return the model whose mixers the layers have. `inner` is their inner width, by default as expanded."""
        inner = self.mamba_expand * self.hidden_size if inner is None else inner
        if inner % self.mamba_n_heads:
            raise ValueError(f"mamba_n_heads {self.mamba_n_heads} does not divide Mamba's inner width {inner}")
        width = inner // self.mamba_n_heads if self.mamba_d_head == "auto" else self.mamba_d_head
        if width * self.mamba_n_heads != inner:
            raise ValueError(
                f"mamba_n_heads {self.mamba_n_heads} times mamba_d_head {width} is not Mamba's inner width {inner}"
            )
        return SelectiveConfig(
            model_type="mamba2",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=inner,
            state_size=self.mamba_d_state,
            num_heads=self.mamba_n_heads,
            head_dim=width,
            n_groups=self.mamba_n_groups,
            conv_kernel=self.mamba_d_conv,
            use_conv_bias=self.mamba_conv_bias,
            use_bias=self.mamba_proj_bias,
            layer_norm_epsilon=self.rms_norm_eps,
            time_step_limit=self.time_step_limit,
        )


def mixers_of(
    types: tuple[str, ...] | None, num_layers: int, known: tuple[Mixer, ...]
) -> tuple[tuple[Mixer, ...], ...]:
    """Return the mixers of each layer, from a file's layer_types; without them all are Mamba-2."""
    types = ("mamba",) * num_layers if types is None else types
    if len(types) != num_layers:
        raise ValueError(f"layer_types names {len(types)} layers of {num_layers}")
    for name in types:
        if _MIXERS.get(name) not in known:
            names = [key for key, mixer in _MIXERS.items() if mixer in known]
            raise ValueError(f"layer_types has {name!r}, which is none of {', '.join(names)}")
    return tuple((_MIXERS[name],) for name in types)
