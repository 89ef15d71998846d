"""Find the fastest layouts that fit, without predicting all of them, and say why the others do not fit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.planner.cluster import Cluster
from whet.planner.layout import Layout, Recompute, Work
from whet.planner.model_shape import ModelShape
from whet.planner.prediction import Prediction
from whet.planner.space import RECOMPUTES, Degrees, Space

Predictor = Callable[[ModelShape, Cluster, Layout, Work], Prediction]

MARGIN = 0.06
"""The share of a chip's memory that a plan leaves free: what a driver, its contexts and other libraries take."""

_OF_HOST = 0.8  # the share of a host's memory that state may take
_LEAST_IMPROVED = 4  # combinations that are improved, however few are asked for
_HOPELESS = 1.3  # a combination that is this much slower at first is not improved
_CLOSE = 1.03  # a combination that is at most this much slower than the best is improved by two choices at once
_NEAR = 1.1  # a neighbour of the best combination that is at most this much slower is improved


@dataclass(frozen=True)
class Candidate:
    """Hold a layout with what is predicted of it, and how many bytes it lacks; 0 where it fits."""

    layout: Layout
    prediction: Prediction
    lacks: float

    @property
    def fits(self) -> bool:
        return self.lacks == 0

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what decides an order: what fits before what does not, then time or what is lacking; no ties."""
        first = self.prediction.step_s.value if self.fits else self.lacks
        layout = self.layout
        told = (layout.tensor, layout.pipeline, layout.context, layout.expert, layout.zero_stage, layout.shard)
        rest = (layout.virtual_stages, layout.recompute != "none", layout.micro_batch_size, layout.offload)
        return (not self.fits, first, self.prediction.memory_total.value, told, rest)


@dataclass
class Search:
    """Predict layouts of a space, each once.

    Attributes:
        seen: What was predicted so far, in order.
    """

    space: Space
    predict: Predictor
    seen: dict[Layout, Candidate] = field(default_factory=dict)

    @property
    def usable_bytes(self) -> float:
        return self.space.cluster.chip.memory_bytes * (1 - MARGIN)

    def candidate(self, layout: Layout) -> Candidate:
        """Return a layout with its prediction."""
        if layout not in self.seen:
            space = self.space
            found = self.predict(space.shape, space.cluster, layout, space.work)
            lacks = max(0.0, found.memory_total.value - self.usable_bytes)
            self.seen[layout] = Candidate(layout, found, lacks + (self._lacks_in_host(layout) if layout.offload else 0))
        return self.seen[layout]

    def _lacks_in_host(self, layout: Layout) -> float:
        """Return the bytes of a chip's state for which the host has no memory."""
        space, cluster = self.space, self.space.cluster
        kept = self.predict(space.shape, cluster, layout.model_copy(update={"offload": False}), space.work)
        share = cluster.host.memory_bytes / min(cluster.chips_per_node, cluster.num_chips)
        return max(0.0, kept.memory.optimizer - share * _OF_HOST)

    def best(self, layouts: Iterable[Layout | None]) -> Candidate | None:
        """Return the best of some layouts; None where there is none."""
        found = [self.candidate(one) for one in layouts if one is not None]
        return min(found, key=lambda one: one.key, default=None)

    def exhaustive(self) -> Candidate | None:
        """Return the best of all layouts."""
        return self.best(self.space.layouts())

    def ranked(self, num_kept: int = 5) -> list[Candidate]:
        """Return the best layout of each of the best combinations of degrees, the fastest first.

        Each combination is looked at in one layout, or in a few where the first does not fit. The most promising are
        then improved by one choice after the other, until no single choice makes them faster. What fits comes first;
        where nothing does, the first lacks least.
        """
        firsts = [(one, found) for one in self.space.degrees if (found := self._first_look(one)) is not None]
        firsts.sort(key=lambda pair: pair[1].key)
        kept = dict[Degrees, Candidate]()
        for degrees, start in firsts:
            best = min(kept.values(), key=lambda one: one.key, default=start)
            hopeless = best.fits and (not start.fits or _time(start) > _HOPELESS * _time(best))
            if len(kept) >= max(num_kept, _LEAST_IMPROVED) or (hopeless and len(kept) >= num_kept):
                break
            kept[degrees] = start if hopeless else self._descend(degrees, start)
        self._go_on_from_best(kept)
        return sorted(kept.values(), key=lambda one: one.key)[:num_kept]

    def _go_on_from_best(self, kept: dict[Degrees, Candidate]) -> None:
        """Improve the best combinations and those beside the best one, as long as that leads on. Changes `kept`."""
        while kept:
            first = min(kept.values(), key=lambda one: one.key)
            for one, last in kept.items():
                if last.fits and _time(last) < _CLOSE * _time(first):
                    kept[one] = self._with_less_divided(one, last)
            degrees, best = min(kept.items(), key=lambda pair: pair[1].key)
            beside = [one for one in self.space.degrees if _is_beside(degrees, one)]
            looked = [(found, one) for one in beside if (found := self._as_in(one, best.layout)) is not None]
            looked = [(found, one) for found, one in looked if one not in kept or found.key < kept[one].key]
            looked.sort(key=lambda pair: pair[0].key)
            for found, one in looked[:2]:
                if found.fits and _time(found) < _NEAR * _time(best):
                    kept[one] = self._descend(one, found)
            if min(kept.values(), key=lambda one: one.key) is best:
                return

    def _as_in(self, degrees: Degrees, layout: Layout) -> Candidate | None:
        """Return the layout of other degrees with what another one chooses beside them, as far as that is possible."""
        space = self.space
        shardings = [one for one in space.shardings(degrees) if one[0] == layout.zero_stage]
        kept_whole = layout.shard in (1, layout.data)
        sharding = (min, max)[kept_whole](shardings, default=max(space.shardings(degrees)))
        same_tokens = layout.micro_batch_size * degrees.context / layout.context
        rows = min(space.micro_batch_sizes(degrees), key=lambda one: abs(one - same_tokens))
        stages = space.virtual_stages(degrees)
        choices = _choices_of(layout) | {
            "sharding": sharding,
            "expert": max(one for one in space.experts(degrees) if one <= layout.expert),
            "micro_batch_size": rows,
            "virtual_stages": layout.virtual_stages if layout.virtual_stages in stages else stages[0],
        }
        found = self._least_recomputed(degrees, choices, layout.recompute)
        if found is None or (not found.fits and rows > 1):
            found = self._least_recomputed(degrees, choices | {"micro_batch_size": 1}, layout.recompute)
        return found

    def _first_look(self, degrees: Degrees) -> Candidate | None:
        """Return the best of a few layouts: with the state divided as usual, or all that ZeRO divides.

        Where all is divided, more rows at a time are looked at too: each micro-batch waits for gathered layers, and a
        combination that seems slow here is not improved.
        """
        space, shardings = self.space, self.space.shardings(degrees)
        usual = [one for one in shardings if one[0] <= 1][-1]
        within, whole = min(one for one in shardings if one[0] == shardings[-1][0]), max(shardings)
        most = max(1, space.cluster.chips_per_node // degrees.tensor)
        choices: dict[str, Any] = {
            "expert": max(one for one in space.experts(degrees) if one <= most),
            "virtual_stages": space.virtual_stages(degrees)[0],
            "offload": space.offloads[-1],
        }
        found: Candidate | None = None
        for sharding in dict.fromkeys((usual, within, whole)):
            found = _better(found, self._least_recomputed(degrees, choices | {"sharding": sharding}))
            if found is not None and found.fits and (found.layout.recompute == "none" or sharding != usual):
                break
        if found is not None and found.fits and found.layout.zero_stage == 3:
            more = {"micro_batch_size": space.micro_batch_sizes(degrees)[:3][-1]}
            own = _choices_of(found.layout) | more
            found = _better(found, self._least_recomputed(degrees, own, found.layout.recompute))
        return found

    def _descend(self, degrees: Degrees, start: Candidate) -> Candidate:
        """Return the layout that no choice improves, nor two that depend on each other."""
        space, best = self.space, start
        rows, stages = space.micro_batch_sizes(degrees), space.virtual_stages(degrees)
        moves: Sequence[tuple[str, Sequence[Any]]] = (
            ("sharding", space.shardings(degrees)),
            ("expert", space.experts(degrees)),
            ("virtual_stages", stages),
            ("micro_batch_size", rows),
            ("offload", space.offloads),
        )
        while True:
            before = best
            for name, choices in moves:
                for one in choices:
                    least = "none" if name in ("sharding", "micro_batch_size") else best.layout.recompute
                    found = self._least_recomputed(degrees, _choices_of(best.layout) | {name: one}, least)
                    if found is not None and found.key < best.key:
                        best = found
                    if found is not None and not found.fits and name == "micro_batch_size":
                        break  # more rows at a time need more memory
            if best is before:
                return best

    def _with_less_divided(self, degrees: Degrees, best: Candidate) -> Candidate:
        """Return the best layout of those with ZeRO 1 instead of 2 or 3, over all numbers of virtual stages.

        ZeRO 2 and 3 send for each virtual stage, so that neither choice may pay without the other.
        """
        own, last = _choices_of(best.layout), best.layout
        if last.zero_stage < 2 or (1, last.shard) not in self.space.shardings(degrees):
            return best
        for virtual in self.space.virtual_stages(degrees):
            layout = self.space.layout(degrees, **(own | {"sharding": (1, last.shard), "virtual_stages": virtual}))
            best = best if layout is None else min(best, self.candidate(layout), key=lambda one: one.key)
        return best

    def _least_recomputed(
        self, degrees: Degrees, choices: dict[str, Any], least: Recompute = "none"
    ) -> Candidate | None:
        """Return the layout that computes least again and fits, which is the fastest; else the one that lacks least.

        Args:
            least: What is computed again at least; what computes less is not looked at.
        """
        found: Candidate | None = None
        for recompute in RECOMPUTES[RECOMPUTES.index(least) :]:
            layout = self.space.layout(degrees, **(choices | {"recompute": recompute}))
            if layout is None:
                return found
            found = _better(found, self.candidate(layout))
            if found is not None and found.fits:
                return found
        return found


def _better(one: Candidate | None, other: Candidate | None) -> Candidate | None:
    """Return the better one, the first where they are alike; None where there is none."""
    there = [found for found in (one, other) if found is not None]
    return min(there, key=lambda found: found.key, default=None)


def _is_beside(one: Degrees, other: Degrees) -> bool:
    """Return whether two combinations differ in one exchange between two degrees."""
    names = ("tensor", "pipeline", "context", "data")
    return len([name for name in names if getattr(one, name) != getattr(other, name)]) == 2


def _time(one: Candidate) -> float:
    return one.prediction.step_s.value


def _choices_of(layout: Layout) -> dict[str, Any]:
    """Return what is chosen beside the degrees, as the arguments of Space.layout."""
    return {
        "sharding": (layout.zero_stage, layout.shard),
        "expert": layout.expert,
        "micro_batch_size": layout.micro_batch_size,
        "virtual_stages": layout.virtual_stages,
        "recompute": layout.recompute,
        "offload": layout.offload,
    }
