"""What the rounds come to: medians of every figure, and what was asked of whet beside the best of its peers."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving_peers.shape import bytes_per_token
from serving_peers.tasks import CONTEXTS, DECODE_PROMPTS, PREFILLS
from whet.comparison.claim import claim_of

Round = Mapping[str, Any]
Figure = Callable[[Mapping[str, Any]], float]

FIGURES: dict[str, Figure] = {
    **{f"decode after {n}, tok/s": lambda a, n=n: a["decode"]["tokens_per_s"][str(n)] for n in DECODE_PROMPTS},
    **{f"prefill {n:,}, tok/s": lambda a, n=n: a["prefill"]["tokens_per_s"][str(n)] for n in PREFILLS},
    "16 requests, output tok/s": lambda a: a["mix"]["output_tokens_per_s"],
    **{f"a token at {n:,}, ms": lambda a, n=n: a["contexts"]["ms_per_token"][str(n)] for n in CONTEXTS},
    "peak memory, MB": lambda a: a["peak_bytes"] / 1e6,
    "to load, s": lambda a: a["load_s"],
}
_ANY = ("llama.cpp", "openvino", "transformers")
_TUNED = " tuned"


def figures(names: Sequence[str], rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """The median over the rounds of every figure that an engine has."""
    medians: dict[str, dict[str, float]] = {}
    for name in names:
        medians[name] = {}
        for figure, read in FIGURES.items():
            values = _values(rounds, name, read)
            if values:
                medians[name][figure] = statistics.median(values)
    return medians


def judge(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Each thing asked for, where the rounds have what it takes."""
    decode = f"decode after {DECODE_PROMPTS[-1]}, tok/s"
    beside = [
        ("whet int8", decode, ("llama.cpp Q8_0",), "≥ 1.25"),
        ("whet int4", decode, ("llama.cpp Q4_0", "openvino int4"), "≥ 1.2"),
        *(("whet int8", f"prefill {n:,}, tok/s", _ANY, "≥ 1.2") for n in PREFILLS),
        ("whet int8", "16 requests, output tok/s", _ANY, "≥ 1.4"),
    ]
    claims = [
        *(_over_peers(rounds, *asked, tuned=tuned) for asked in beside for tuned in (False, True)),
        _share_of_bandwidth(rounds, FIGURES[decode]),
        *(_growth(rounds, name) for name in ("whet int8", "whet int4", "whet bf16")),
    ]
    return [claim for claim in claims if claim is not None]


def _over_peers(
    rounds: Sequence[Round], ours: str, figure: str, peers: tuple[str, ...], wanted: str, *, tuned: bool
) -> dict[str, Any] | None:
    """whet's rate over that of the best of the engines whose names begin like one of `peers`, by medians.

    tuned: the peers tuned beyond how they come are among them; None where none of those is asked about.
    """
    read = FIGURES[figure]
    rivals = [name for name in rounds[0] if name.startswith(peers) and (tuned or not name.endswith(_TUNED))]
    if tuned and not any(name.endswith(_TUNED) for name in rivals):
        return None
    rivals = [name for name in rivals if len(_values(rounds, name, read)) == len(rounds)]
    if not rivals or len(_values(rounds, ours, read)) < len(rounds):
        return None
    best = max(rivals, key=lambda name: statistics.median(_values(rounds, name, read)))
    theirs = statistics.median(_values(rounds, best, read))
    ratios = ([1 / v for v in _values(rounds, best, read)], [1 / v for v in _values(rounds, ours, read)])
    return _claim(
        f"{ours}: {figure}" + (", peers tuned" if tuned else ""),
        rounds,
        ours,
        read,
        f"{best}: {theirs:,.0f}",
        ratios,
        wanted,
    )


def _share_of_bandwidth(rounds: Sequence[Round], read: Figure) -> dict[str, Any] | None:
    """Bytes of int8 weights that decoding reads a second, over what this machine can read, of the same round."""
    rates = _values(rounds, "whet int8", read)
    if len(rates) < len(rounds):
        return None
    limits = [r["read_bandwidth"] / bytes_per_token(8) for r in rounds]
    read_gb = statistics.median(r["read_bandwidth"] for r in rounds) / 1e9
    against = f"the limit: {statistics.median(limits):,.0f} at {read_gb:.1f} GB/s"
    ratios = ([1 / v for v in limits], [1 / v for v in rates])
    return _claim("whet int8: decode, share of the read limit", rounds, "whet int8", read, against, ratios, "≥ 0.8")


def _growth(rounds: Sequence[Round], name: str) -> dict[str, Any] | None:
    first, last = (f"a token at {n:,}, ms" for n in (CONTEXTS[0], CONTEXTS[-1]))
    short, long = _values(rounds, name, FIGURES[first]), _values(rounds, name, FIGURES[last])
    if min(len(short), len(long)) < len(rounds):
        return None
    against = f"{first}: {statistics.median(short):.2f}"
    return _claim(f"{name}: {last}", rounds, name, FIGURES[last], against, (long, short), "< 2")


def _claim(
    what: str,
    rounds: Sequence[Round],
    name: str,
    read: Figure,
    against: str,
    pairs: tuple[list[float], list[float]],
    wanted: str,
) -> dict[str, Any]:
    comparison = claim_of(*pairs)
    return {
        "what": what,
        "ours": statistics.median(_values(rounds, name, read)),
        "against": against,
        "ratio": comparison.ratio,
        "ci95": list(comparison.ci95),
        "num_rounds": comparison.num_pairs,
        "wanted": wanted,
    }


def _values(rounds: Sequence[Round], name: str, read: Figure) -> list[float]:
    """One engine's figure in each round that has it."""
    values = []
    for answers in rounds:
        try:
            values.append(float(read(answers[name])))
        except KeyError:  # it failed, or was not asked for this
            continue
    return values
