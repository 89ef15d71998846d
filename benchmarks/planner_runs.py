"""Read the published runs that the planner is fitted to and judged by, from benchmarks/planner_points.toml."""

import hashlib
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.planner.cluster import Cluster
from whet.planner.curves import generation
from whet.planner.layout import Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.operations import model_operations
from whet.planner.predict import check_layout
from whet.planner.prediction import Prediction

POINTS = Path(__file__).parent / "planner_points.toml"
GIB = 2**30


@dataclass(frozen=True)
class Point:
    """Hold one published run.

    Attributes:
        kind: "step" where the whole layout is given, "rate" where something in it is assumed.
        set_aside: Why it is neither fitted nor judged by, where its publication contradicts itself; else "".
    """

    name: str
    kind: str
    shape: ModelShape
    cluster: Cluster
    layout: Layout
    work: Work
    step_s: float | None
    mfu: float | None
    memory_gib: float | None
    source: str
    set_aside: str = ""

    @property
    def family(self) -> str:
        return f"{self.layout.software}-{generation(self.cluster.chip)}"

    @property
    def is_left_out(self) -> bool:
        """Return whether the fit does not see it: a third of the runs, by a hash of the name."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 3 == 0

    @property
    def published_s(self) -> float:
        """Return the time of a step, computed from the share of the peak where that was published."""
        if self.step_s is not None:
            return self.step_s
        peak = self.cluster.chip.flops["bfloat16"] * self.cluster.num_chips
        return model_operations(self.shape, self.work) / (peak * (self.mfu or math.nan))

    def error(self, prediction: Prediction) -> float:
        """Return by which share the predicted time of a step is longer than the published one."""
        return prediction.step_s.value / self.published_s - 1

    def memory_error(self, prediction: Prediction) -> float:
        return prediction.memory_total.value / GIB / (self.memory_gib or math.nan) - 1


def read_points(path: Path = POINTS) -> list[Point]:
    """Read the published runs."""
    data = tomllib.loads(path.read_text())
    return [_point(data, group, row) for group in data["sources"] for row in group["runs"]]


def _point(data: dict[str, Any], group: dict[str, Any], row: dict[str, Any]) -> Point:
    """Return a run of one source, whose layout says what differs from that of all runs of the source."""
    model = dict(data["models"][row["model"]])
    if "positions" in row:
        model["num_positions"] = row["positions"]
    shape = ModelShape(name=row["model"], **model)
    cluster = Cluster(**data["clusters"][group["cluster"]], name=group["cluster"], num_chips=row["chips"])
    layout, work = Layout(**(group["layout"] | row["layout"])), Work(**row["work"])
    check_layout(shape, cluster, layout, work)
    return Point(
        row["name"],
        group["kind"],
        shape,
        cluster,
        layout,
        work,
        row.get("step_s"),
        row.get("mfu"),
        row.get("memory_gib"),
        group["source"],
        row.get("set_aside", ""),
    )
