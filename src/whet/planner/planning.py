"""Plan a training: read the model, describe the cluster, search, and gather the answer."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from whet.errors import OptionError
from whet.planner.alternatives import alternatives_of, misfits_of, nothing_fits
from whet.planner.answer import PlanAnswer, RankedPlan
from whet.planner.cluster import Chip, Cluster
from whet.planner.clusters import cluster_named, read_cluster
from whet.planner.curves import fitted
from whet.planner.layout import OptimizerName, Precision, Software, Work
from whet.planner.model_files import PlannedModel, read_model
from whet.planner.named import found_by_name
from whet.planner.optimizers import OPTIMIZERS
from whet.planner.predict import assumptions_of, predict
from whet.planner.prediction import Interval
from whet.planner.scaling import scaling_of, tokens_per_s
from whet.planner.search import MARGIN, Candidate, Search
from whet.planner.space import Space, check_batch
from whet.planner.whet_train import missing_in_whet, train_section

TOKENS_OF_A_STEP = 4 * 2**20
LONGEST_ROW = 8192
SOFTWARE: dict[str, Software] = {"torch": "torch-2024", "megatron": "megatron-2024"}
"""The programs whose published speeds are taken, by what they are called."""
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
    optimizer: str = "adamw",
    software: str = "torch",
    compiled: bool = False,
    price: float | None = None,
    top: int = 5,
    scaling: bool = True,
    trace: bool = False,
) -> PlanAnswer:
    """Predict how a training of a language model is divided best on a cluster, and what it takes.

    Nothing is run, but with `trace` one rank's steps without numbers.

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
        optimizer: What updates the parameters: "adamw", "adamw_8bit", "sgd", "lion", "adafactor" or "muon".
        software: Whose published speeds are taken: "torch" (PyTorch's FSDP, torchtitan) or "megatron".
        compiled: Whether torch.compile fuses elementwise operators. Megatron's are fused by hand either way.
        price: Dollars for an hour of a GPU. None takes the price that the cluster's description has, if any.
        top: The most plans that are returned.
        scaling: Whether the best plan is also searched for 8 to 16,384 GPUs.
        trace: Whether a step of one rank of the best plan is run without numbers, to count its memory. It takes torch.

    Raises:
        TargetError: The model cannot be planned.
        OptionError: Numbers do not divide, nothing fits, or the cluster is not known.
    """
    check_numbers(
        {"--gpus": gpus, "--nodes": nodes, "--global-batch-size": global_batch_size,
         "--sequence-length": sequence_length, "--top": top},
        {"--tokens": tokens, "--price": price},
    )  # fmt: skip
    name, programs = optimizer_named(optimizer), found_by_name(SOFTWARE, software, "software", "--software: ")
    found = read_model(model)
    there = cluster_of(gpus=gpus, gpu=gpu, nodes=nodes, cluster=cluster, price=price)
    work, given = _work(found, there, global_batch_size, sequence_length)
    check_batch(work, there.num_chips)
    space = Space(found.shape, there, work, precision=precision, optimizer=name, software=programs, compiled=compiled)
    if not space.degrees:
        raise OptionError(_impossible(space))
    answer = _answer(space, found, tokens=tokens, top=top, with_scaling=scaling, given=given)
    return _traced(answer) if trace else answer


def _traced(answer: PlanAnswer) -> PlanAnswer:
    """Return the answer with a trace of its best plan."""
    from whet.planner.tracing.trace import trace_memory  # it needs torch, as nothing else here does

    layout = answer.best.layout
    share = fitted(answer.cluster, layout).constants.fragmentation
    return answer.model_copy(update={"trace": trace_memory(answer.model, layout, answer.work, share)})


def optimizer_named(name: str) -> OptimizerName:
    """Return the optimiser that a name means.

    Raises:
        OptionError: There is none of this name.
    """
    known: dict[str, OptimizerName] = {one: one for one in OPTIMIZERS}
    return found_by_name(known, name.replace("-", "_"), "optimizer", "--optimizer: ")


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
        found = cluster_named(gpu, per_node or 1, chips_per_node=per_node or (1 if gpus == 1 else None))
    elif isinstance(cluster, Cluster):
        found = cluster
    elif str(cluster) == "this":
        from whet.planner.this_machine import this_machine  # it measures, and needs torch

        found = this_machine(gpus or 1)
    else:
        found = read_cluster(Path(cluster))
    if per_node is not None:
        found = found.model_copy(update={"chips_per_node": per_node})
    whole = (nodes or 1) * found.chips_per_node if nodes or cluster is None else found.num_chips
    found = found.with_chips(gpus or whole)
    if price is not None:
        priced = found.chip.model_copy(update={"dollars_per_hour": price, "price_source": "as given"})
        found = found.model_copy(update={"chip": priced})
    return found


def _work(
    found: PlannedModel, cluster: Cluster, global_batch_size: int | None, sequence_length: int | None
) -> tuple[Work, list[str]]:
    """Return what a step trains on, and what was assumed of it.

    Raises:
        OptionError: A row is longer than the model's positions.
    """
    given = list[str]()
    tokens = sequence_length or found.sequence_length
    if tokens is None:
        tokens = min(found.longest or LONGEST_ROW, LONGEST_ROW)
        given.append(f"rows of {tokens:,} tokens, since --sequence-length is not given")
    if found.shape.num_positions and found.longest is not None and tokens > found.longest:
        raise OptionError(
            f"--sequence-length {tokens} is longer than the {found.longest} positions that {found.shape.name} has "
            "learned embeddings for; give fewer tokens"
        )
    rows = global_batch_size or found.global_batch_size
    if rows is None:
        wanted = max(1, TOKENS_OF_A_STEP // tokens)
        chips = cluster.num_chips
        rows = wanted if chips % wanted == 0 else max(1, round(wanted / chips)) * chips
        given.append(
            f"{rows:,} rows a step ({rows * tokens:,} tokens), since --global-batch-size is not given: about the 4 "
            "million tokens of Llama 2 (Touvron et al., 2023, arXiv:2307.09288, section 2.2)"
        )
    return Work(global_batch_size=rows, sequence_length=tokens), given


def _impossible(space: Space) -> str:
    shape, work = space.shape, space.work
    return (
        f"no degrees divide {shape.name} ({shape.num_heads} heads, {shape.num_layers} layers) and "
        f"{work.global_batch_size} rows of {work.sequence_length} tokens among {space.cluster.num_chips} GPUs; give a "
        f"--global-batch-size that is a multiple of {space.cluster.num_chips}"
    )


def _answer(
    space: Space,
    found: PlannedModel,
    *,
    tokens: float | None,
    top: int,
    with_scaling: bool,
    given: list[str],
) -> PlanAnswer:
    """Search, and gather all that is answered.

    Raises:
        OptionError: Nothing fits.
    """
    search, notices = Search(space, predict), list[str]()
    ranked = search.ranked(top)
    if not ranked[0].fits:
        nearest = ranked[0]
        space = replace(space, offloads=(False, True))
        search = Search(space, predict)
        ranked = search.ranked(top)
        if not ranked[0].fits:
            raise nothing_fits(search, min(nearest, ranked[0], key=lambda one: one.key), predict)
        notices.append("Nothing fits with the optimiser's state on the GPUs: these plans keep it in the host's memory.")
    fitting = [one for one in ranked if one.fits]
    runnable = _runnable(space, found.model_type, fitting)
    make = partial(_ranked_plan, space=space, model_type=found.model_type, tokens=tokens)
    outside = dict.fromkeys(line for one in fitting for line in one.prediction.outside)
    misfits, others = misfits_of(search), alternatives_of(search)
    return PlanAnswer(
        model=space.shape,
        model_type=found.model_type,
        cluster=space.cluster,
        work=space.work,
        tokens=tokens,
        plans=tuple(map(make, fitting)),
        runnable=None if runnable is None else make(runnable),
        alternatives=others,
        misfits=misfits,
        scaling=scaling_of(space, predict, ranked[0]) if with_scaling else None,
        num_possible=space.count(),
        usable_bytes=search.usable_bytes,
        assumptions=(*given, *assumptions_of(space.cluster, fitting[0].layout), *_own_assumptions(space.cluster)),
        outside=tuple(outside),
        notices=tuple(notices),
    )


def _own_assumptions(cluster: Cluster) -> tuple[str, ...]:
    chip, host = cluster.chip, cluster.host
    found = (
        f"{MARGIN:.0%} of a GPU's memory stay free for the driver and other libraries (whet's own margin)",
        f"energy: each GPU at its full {chip.power_w:g} W ({chip.source})",
        f"energy: each host at {host.power_w:g} W ({host.source})",
    )
    return (*found, *price_assumption(chip))


def price_assumption(chip: Chip) -> tuple[str, ...]:
    """Return what a chip costs, with the source; nothing where no price is known."""
    if chip.dollars_per_hour is None:
        return ()
    return (f"price: {chip.dollars_per_hour:g} dollars a GPU and hour ({chip.price_source or chip.source})",)


def _runnable(space: Space, model_type: str, fitting: list[Candidate]) -> Candidate | None:
    """Return the fastest layout that `whet train` can run and that fits; None where there is none."""
    ours = replace(space, admits=lambda layout: not missing_in_whet(layout, model_type))
    if ours.admits(fitting[0].layout):
        return fitting[0]
    found = Search(ours, predict).ranked(1)
    return found[0] if found and found[0].fits else None


def _ranked_plan(one: Candidate, space: Space, model_type: str, tokens: float | None) -> RankedPlan:
    prediction, cluster, work = one.prediction, space.cluster, space.work
    step, parts = prediction.step_s, prediction.step
    nodes = cluster.num_chips / cluster.chips_per_node
    watts = cluster.num_chips * cluster.chip.power_w + max(1.0, nodes) * cluster.host.power_w
    price = cluster.chip.dollars_per_hour
    dollars_per_s = None if price is None else price * cluster.num_chips / 3600
    steps = None if tokens is None else tokens / work.tokens
    return RankedPlan(
        layout=one.layout,
        prediction=prediction,
        exposed_s=sum(value for name, value in parts.by_name.items() if "communication" in name),
        tokens_per_s=tokens_per_s(one, work),
        joules_per_token=_times(step, watts / work.tokens),
        dollars_per_million_tokens=None
        if dollars_per_s is None
        else _times(step, dollars_per_s * _MILLION / work.tokens),
        time_s=None if steps is None else _times(step, steps),
        dollars=None if steps is None or dollars_per_s is None else _times(step, steps * dollars_per_s),
        is_tight=prediction.memory_total.high > cluster.chip.memory_bytes,
        train=train_section(one.layout, work, cluster, model_type),
    )


def _times(one: Interval, factor: float) -> Interval:
    return Interval(value=one.value * factor, low=one.low * factor, high=one.high * factor)
