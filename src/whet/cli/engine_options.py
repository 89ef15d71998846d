"""Define the options of whet.EngineOptions on the command line, for every command that makes an engine."""

from typing import Annotated

import typer

from whet.models.options import Dtype, KvBits, WeightBits
from whet.server.options import EngineOptions, SpeculationKind

DEFAULTS = EngineOptions()

DtypeOption = Annotated[
    Dtype | None,
    typer.Option(help="the type of keys, values and weights that are not quantised", show_default=DEFAULTS.dtype),
]
WeightsOption = Annotated[
    WeightBits | None,
    typer.Option(help="how the weights are stored; fewer bits are faster", show_default=DEFAULTS.weights),
]
KvOption = Annotated[KvBits, typer.Option(help="how keys and values are stored; int8 takes half the memory of bf16")]
SpeculationOption = Annotated[
    SpeculationKind,
    typer.Option(help="speculative decoding: auto (while it pays), ngram (always, from the text itself) or off"),
]
MaxSeqsOption = Annotated[int, typer.Option(help="the most requests that run at once")]
BatchTokensOption = Annotated[
    int, typer.Option(help="the most tokens that one step computes; --max-num-batched-tokens is the same")
]
MaxLenOption = Annotated[
    int | None,
    typer.Option(help="the most tokens of a prompt and its answer together", show_default="what the model takes"),
]
MaxWaitingOption = Annotated[
    int | None,
    typer.Option(
        help="the most requests, or samples of a tuned model, that may wait; further ones are refused (429)",
        show_default="256 requests, 1024 samples",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="the memory for keys and values, as 512MB or 2GiB",
        show_default="a quarter of what is free",
    ),
]
TensorParallelOption = Annotated[
    int,
    typer.Option(
        "--tensor-parallel-size",
        help="how many processes of this machine compute one model together, each with a share of weights and cores",
    ),
]
