"""Answer how a language model is served within limits: the plans, or why there is none, with all assumptions."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from whet.core.slo import Slo
from whet.errors import OptionError
from whet.planner.cluster import Cluster
from whet.planner.model_files import read_model
from whet.planner.model_shape import ModelShape
from whet.planner.planning import check_numbers, cluster_of, price_assumption
from whet.planner.serving import MARGIN, WITHIN, Replica, ServingPlan, ServingPrecision, Traffic, serving_plans
from whet.ui.figures import duration, num_bytes


class ServingAnswer(BaseModel):
    """Hold the whole answer for a server.

    Attributes:
        model: The sizes of the model.
        cluster: The chips, and what lies between them.
        prompt_tokens: Those of a request.
        output_tokens: Those that it generates.
        rate: The requests a second.
        slo: The limits, as they were given.
        precision: The numbers that weights are kept in.
        plans: The plans that hold the limits, those with the fewest GPUs first.
        refused: Why other degrees of tensor parallelism do not serve.
        assumptions: What is taken as given, each with its source.
        outside: What lies outside of what predictions were fitted to.
    """

    model_config = ConfigDict(frozen=True)

    model: ModelShape
    cluster: Cluster
    prompt_tokens: int
    output_tokens: int
    rate: float
    slo: str
    precision: ServingPrecision
    plans: tuple[ServingPlan, ...]
    refused: dict[int, str]
    assumptions: tuple[str, ...]
    outside: tuple[str, ...]

    @property
    def best(self) -> ServingPlan:
        """Return the plan with the fewest GPUs."""
        return self.plans[0]


def plan_serving(
    model: str | Path,
    *,
    rate: float,
    prompt_tokens: int = 512,
    output_tokens: int = 128,
    slo: str = "ttft=1s,tpot=50ms",
    gpus: int | None = None,
    gpu: str = "h100",
    cluster: str | Path | Cluster | None = None,
    precision: ServingPrecision = "bfloat16",
    price: float | None = None,
) -> ServingAnswer:
    """Predict how many GPUs serve a language model within limits, how they are divided, and what a token costs.

    Args:
        model: A Hugging Face directory, a config.json, or a configuration of whet train. No weights are read.
        rate: The requests a second.
        prompt_tokens: The tokens of each prompt.
        output_tokens: The tokens of each answer.
        slo: The limits, as "ttft=1s,tpot=50ms".
        gpus: The most GPUs that may be used; None for any number.
        gpu: Their name, such as "h100".
        cluster: A file that describes the cluster, or a Cluster, in the place of `gpu`.
        precision: How weights are stored and multiplied: "bfloat16" or "fp8". Keys and values are bfloat16.
        price: Dollars for an hour of a GPU. None takes the price that the cluster's description has, if any.

    Raises:
        TargetError: The model cannot be planned.
        OptionError: No plan holds the limits, or an option is out of its range.
    """
    check_numbers(
        {"--gpus": gpus, "--prompt-tokens": prompt_tokens, "--output-tokens": output_tokens},
        {"--rate": rate, "--price": price},
    )
    traffic = Traffic(prompt_tokens, output_tokens, rate, Slo.parse(slo))
    shape = read_model(model).shape
    there = cluster_of(gpus=None, gpu=gpu, nodes=None, cluster=cluster, price=price)
    plans, refused = serving_plans(shape, there, traffic, precision)
    if not plans:
        last = refused[-1]
        raise OptionError(
            f"{shape.name} cannot be served within {slo} on {there.chip.name}: the nearest, {last.tensor} GPUs a "
            f"replica: {_why(last)}; {_advice(last)}"
        )
    if gpus is not None:
        plans = _with_at_most(gpus, plans, rate, slo)
    return ServingAnswer(
        model=shape,
        cluster=there,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        rate=rate,
        slo=slo,
        precision=precision,
        plans=tuple(plans),
        refused={one.tensor: _why(one) for one in refused},
        assumptions=_assumptions(there),
        outside=("servers: no published run of one was fitted; the shares of the peaks are those of trainings",),
    )


def _with_at_most(gpus: int, plans: list[ServingPlan], rate: float, slo: str) -> list[ServingPlan]:
    """Return the plans that take no more GPUs; raise OptionError where all take more."""
    enough = [one for one in plans if one.chips <= gpus]
    if not enough:
        least = plans[0]
        raise OptionError(
            f"{rate:g} requests a second within {slo} take {least.chips} GPUs at least "
            f"({least.replicas} replicas of {least.tensor}), and --gpus is {gpus}; give more, or a lower --rate"
        )
    return enough


def _why(one: Replica) -> str:
    """Return why a replica does not serve."""
    if one.most_batch < 1:
        usable = one.cluster.chip.memory_bytes * (1 - MARGIN)
        return (
            f"the weights, {num_bytes(one.weight_bytes)} a GPU, and the keys and values of one request do not fit into "
            f"{num_bytes(usable)}"
        )
    _, tpot, ttft = one.at(1e-6)
    return f"a lone request takes {duration(ttft)} to its first token and {duration(tpot)} a token"


def _advice(one: Replica) -> str:
    if one.most_batch < 1:
        return "use GPUs with more memory, or --precision fp8"
    return "give wider limits, shorter prompts, or faster GPUs"


def _assumptions(cluster: Cluster) -> tuple[str, ...]:
    chip = cluster.chip
    found = (
        f"peaks of {chip.name}: {chip.source}",
        f"links within a node, {cluster.inside.name}: {cluster.inside.source}",
        "a prompt is computed by itself, at the share of the peak that matrices reach in trainings (docs/planner.md)",
        "decoding reads all weights and the keys and values of all requests in each step (Pope et al., 2022, "
        "arXiv:2211.05102, section 2)",
        "while a prompt is computed, nothing is decoded; a batch is what Little's law gives",
        f"arrivals are random (Poisson) and prompts equal (M/D/1); {WITHIN:.0%} of requests stay under the time to the "
        "first token, by an exponential tail",
        f"{MARGIN:.0%} of a GPU's memory stay free; prompts share no beginnings; nothing is speculated",
        "intervals: a quarter faster and slower, since no published run of a server was fitted",
    )
    return (*found, *price_assumption(chip))
