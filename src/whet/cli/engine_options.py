"""Define the options of whet.EngineOptions on the command line, for every command that makes an engine."""

from typing import Annotated

import typer

from whet.models.options import Dtype, KvBits, WeightBits
from whet.server.options import EngineOptions, SpeculationKind

DEFAULTS = EngineOptions()

DtypeOption = Annotated[
    Dtype | None,
    typer.Option(help="number format of keys, values and weights that stay as they are", show_default=DEFAULTS.dtype),
]
WeightsOption = Annotated[
    WeightBits | None,
    typer.Option(help="how the weights are kept: fewer bits, faster", show_default=DEFAULTS.weights),
]
KvOption = Annotated[KvBits, typer.Option(help="how keys and values are kept: int8 takes half the memory of bf16")]
SpeculationOption = Annotated[
    SpeculationKind,
    typer.Option(help="auto: guess tokens ahead while that pays; ngram: always, from the text itself; off: never"),
]
MaxSeqsOption = Annotated[int, typer.Option(help="requests that run at once")]
BatchTokensOption = Annotated[
    int, typer.Option(help="tokens that one step computes at most; --max-num-batched-tokens is the same")
]
MaxLenOption = Annotated[
    int | None, typer.Option(help="tokens of a prompt and its answer together", show_default="what the model takes")
]
MaxWaitingOption = Annotated[int, typer.Option(help="requests that may wait for a place; more are refused (429)")]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="for keys and values, as 512MB or 2GiB", show_default="a quarter of what is free"
    ),
]
