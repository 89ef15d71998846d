"""Plan a training: read the model, describe the cluster, search, and gather the answer."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from whet.errors import OptionError
from whet.planner.alternatives import alternatives_of, misfits_of, nothing_fits
from whet.planner.answer import PlanAnswer, RankedPlan
from whet.planner.cluster import Cluster
from whet.planner.clusters import cluster_named, read_cluster, this_machine
from whet.planner.layout import Layout, Precision, Work
from whet.planner.model_files import PlannedModel, read_model
from whet.planner.predict import predict
from whet.planner.prediction import Interval
from whet.planner.scaling import scaling_of, tokens_per_s
from whet.planner.search import MARGIN, Candidate, Predictor, Search
from whet.planner.space import Space, check_batch
from whet.planner.whet_train import missing_in_whet, train_section

TOKENS_OF_A_STEP = 4 * 2**20
LONGEST_ROW = 8192
_MILLION = 1e6


def plan(
    model: str | Path,
    *,
    gpus: int | None = None,
    gpu: str = "h100",
    nodes: int | None = None,
    cluster: str | Path | Cluster | None = None,
    global_batch_size: int | None = None,
    sequence_length: int | None = None,
    tokens: float | None = None,
    precision: Precision = "bfloat16",
    price: float | None = None,
    top: int = 5,
    scaling: bool = True,
) -> PlanAnswer:
    """Predict how a training of a language model is divided best on a cluster, and what it takes. Nothing is run.

    Args:
        model: A Hugging Face directory, a config.json, or a configuration of whet train. No weights are read.
        gpus: How many GPUs there are; 8 where neither they nor nodes are given.
        gpu: Their name, such as "h100" or "a100".
        nodes: How many nodes there are.
        cluster: A file that describes the cluster, a Cluster, or "this" for the machine at hand; in the place of `gpu`.
        global_batch_size: The rows of a step. None takes the configuration's, or about 4 million tokens.
        sequence_length: The tokens of a row. None takes the configuration's, or what the model was made for.
        tokens: The tokens of the whole training, whose time and cost are told.
        precision: What matrices are multiplied in: "float32", "bfloat16" or "fp8".
        price: Dollars for an hour of a GPU. None takes the price that the cluster's description has, if any.
        top: The most plans that are returned.
        scaling: Whether the best plan is also searched for 8 to 16,384 GPUs.

    Raises:
        TargetError: The model cannot be planned.
        OptionError: Numbers do not divide, nothing fits, or the cluster is not known.
    """
    check_numbers(
        {"--gpus": gpus, "--nodes": nodes, "--global-batch-size": global_batch_size,
         "--sequence-length": sequence_length, "--top": top},
        {"--tokens": tokens, "--price": price},
    )  # fmt: skip
    found = read_model(model)
    there = cluster_of(gpus=gpus, gpu=gpu, nodes=nodes, cluster=cluster, price=price)
    work, given = _work(found, there, global_batch_size, sequence_length)
    check_batch(work, there.num_chips)
    space = Space(found.shape, there, work, precision=precision)
    if not space.degrees:
        raise OptionError(_impossible(space))
    return _answer(space, found, predict, tokens=tokens, top=top, with_scaling=scaling, given=given)


def check_numbers(whole: dict[str, int | None], others: dict[str, float | None]) -> None:
    """Raise OptionError where an option's number is not above 0, by the option's name."""
    for name, value in (whole | others).items():
        if value is not None and not value > 0:
            raise OptionError(f"{name} takes a {'whole ' if name in whole else ''}number above 0; got {value}")


def cluster_of(
    *, gpus: int | None, gpu: str, nodes: int | None, cluster: str | Path | Cluster | None, price: float | None
) -> Cluster:
    """Return the cluster that options mean.

    Raises:
        OptionError: It is not known, or its chips do not fill nodes.
    """
    if gpus is not None and nodes is not None and gpus % nodes:
        raise OptionError(f"--gpus {gpus} do not fill --nodes {nodes} equally; give a multiple of {nodes}")
    per_node = gpus // nodes if gpus is not None and nodes is not None else None
    if cluster is None:
        if gpus is None:
            usual = cluster_named(gpu, 1, chips_per_node=1) if nodes is None else None
            one = usual or cluster_named(gpu, 1)
            del one
        found = _named(gpu, gpus, nodes, per_node)
    else:
        if isinstance(cluster, Cluster):
            found = cluster
        else:
            found = this_machine(gpus or 1) if str(cluster) == "this" else read_cluster(Path(cluster))
        if per_node is not None:
            found = found.model_copy(update={"chips_per_node": per_node})
        number = gpus or (nodes * found.chips_per_node if nodes else found.num_chips)
        found = found.with_chips(number)
    if price is not None:
        told = f"{found.chip.source}; price as given"
        found = found.model_copy(
            update={"chip": found.chip.model_copy(update={"dollars_per_hour": price, "source": told})}
        )
    return found
