"""Fit the planner's constants to published runs, and write what is predicted of each: fitted and left out.

python benchmarks/planner.py [--check]

Two thirds of the points are fitted; a third is left out, by a hash of the point's name. The constants go to
src/whet/planner/fitted.toml, the tables to docs/planner.md. --check fits and prints, and writes nothing.
"""

import argparse
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from planner_intervals import memory_miss, step_miss, width
from planner_page import page
from planner_runs import Point, read_points
from scipy.optimize import least_squares, minimize_scalar

from whet.files import write_whole
from whet.planner.curves import Constants, Fitted, Spread
from whet.planner.predict import predict_with, range_values
from whet.planner.prediction import Prediction
from whet.planner.step_time import StepModel

ROOT = Path(__file__).parent.parent
FITTED = ROOT / "src" / "whet" / "planner" / "fitted.toml"
PAGE = ROOT / "docs" / "planner.md"

# What all families of programs share, with bounds that physics sets: first guess, least, most.
SHARED = {
    "memory_efficiency": (0.8, 0.5, 0.95),
    "between_efficiency": (0.8, 0.4, 0.95),
    "fp8_share": (0.9, 0.5, 1.1),
    "jitter": (0.01, 0.0, 0.05),
}
# What all programs share on a generation of chips, whose links they are.
OF_CHIPS = {
    "inside_efficiency": (0.8, 0.6, 0.95),
    "contention": (0.3, 0.0, 1.0),
}
# What each family has of its own.
OWN = {
    "matrix_efficiency": (0.7, 0.3, 0.95),
    "attention_efficiency": (0.4, 0.1, 0.75),
    "passes": (1.5, 1.0, 4.0),
    "hidden": (0.5, 0.0, 0.95),
}
_STEP = 1e-4  # of a constant's range, in derivatives
_FEWEST = 3  # the fitted runs of a family of which more is fitted than one constant


def families(points: list[Point]) -> dict[str, list[str]]:
    """Return which constants of its own each family has: those that its points depend on."""
    found: dict[str, list[str]] = {}
    number = Counter(point.family for point in points)
    for point in points:
        own = found.setdefault(point.family, ["matrix_efficiency"])
        if number[point.family] < _FEWEST:
            continue
        if "passes" not in own:
            own.append("passes")
        if point.layout.fused_attention and "attention_efficiency" not in own:
            own.append("attention_efficiency")
        if point.layout.overlaps_tensor and "hidden" not in own:
            own.append("hidden")
    return found


class Fit:
    """Hold the fitted constants as one vector, and how its places are named."""

    def __init__(self, points: list[Point]) -> None:
        self.own = families(points)
        self.names = [("", name) for name in SHARED]
        self.names += [(chips, name) for chips in sorted({_chips(family) for family in self.own}) for name in OF_CHIPS]
        self.names += [(family, name) for family in sorted(self.own) for name in sorted(self.own[family])]
        bounds = [{**SHARED, **OF_CHIPS, **OWN}[name] for _, name in self.names]
        self.guess, self.low, self.high = (np.array(column) for column in zip(*bounds, strict=True))
        self.vector = self.guess.copy()
        self.fragmentation = 0.0
        self.spread = Spread(0.0, 0.0)
        self.ranges = _ranges(points)

    def constants(self, family: str, vector: np.ndarray | None = None) -> Constants:
        values = {name: first for name, (first, _, _) in {**SHARED, **OF_CHIPS, **OWN}.items()}
        for (owner, name), value in zip(self.names, self.vector if vector is None else vector, strict=True):
            if owner in _owners(family):
                values[name] = float(value)
        return Constants(**values, fragmentation=self.fragmentation)

    def fitted(self, family: str, vector: np.ndarray | None = None) -> Fitted:
        return Fitted(self.constants(family, vector), self.spread, family, True, self.ranges, "fit")

    def predict(self, point: Point, vector: np.ndarray | None = None) -> Prediction:
        return predict_with(self.fitted(point.family, vector), point.shape, point.cluster, point.layout, point.work)

    def step_s(self, point: Point, vector: np.ndarray) -> float:
        constants = self.constants(point.family, vector)
        rows = point.layout.data * point.layout.micro_batch_size
        num = point.work.global_batch_size // rows
        return StepModel(point.shape, point.cluster, point.layout, point.work, constants, num).run().parts.total

    def run(self, points: list[Point]) -> None:
        """Fit the constants to points. Each weighs the same, and a bad one counts by its size, not its square."""
        remembered = [point for point in points if point.memory_gib is not None]

        def off(share: float) -> float:
            self.fragmentation = share
            return sum(abs(point.memory_error(self.predict(point))) for point in remembered)

        self.fragmentation = float(minimize_scalar(off, bounds=(0.0, 0.2), method="bounded").x)
        scale = self.high - self.low

        def residuals(places: np.ndarray) -> np.ndarray:
            vector = self.low + places * scale
            return np.array([math.log(self.step_s(point, vector) / point.published_s) for point in points])

        def slopes(places: np.ndarray) -> np.ndarray:
            """Return the residuals' derivatives; a constant moves the points of its own family, or of its chips."""
            found = np.zeros((len(points), len(places)))
            before = residuals(places)
            for column, (owner, _) in enumerate(self.names):
                step = _STEP if places[column] <= 1 - _STEP else -_STEP
                moved = places.copy()
                moved[column] += step
                vector = self.low + moved * scale
                for row, point in enumerate(points):
                    if owner in _owners(point.family):
                        after = math.log(self.step_s(point, vector) / point.published_s)
                        found[row, column] = (after - before[row]) / step
            return found

        start = (self.guess - self.low) / scale
        found = least_squares(residuals, start, jac=slopes, bounds=(0, 1), loss="soft_l1", f_scale=0.04)
        self.vector = self.low + found.x * scale

    def judge(self, points: list[Point]) -> None:
        """Take the width of intervals from points that were left out, as if their errors were normal around zero.

        Of the memory all points count, since one constant alone is fitted to them.
        """
        pairs = [(point, self.predict(point)) for point in points]
        memory = [memory_miss(pair) for pair in pairs if pair[0].memory_gib is not None]
        left_out = [step_miss(pair) for pair in pairs if pair[0].is_left_out]
        self.spread = Spread(width(left_out), width(memory))


def _chips(family: str) -> str:
    """Return the generation of chips that a family of programs runs on."""
    return family.rpartition("-")[2]


def _owners(family: str) -> tuple[str, str, str]:
    """Return whose constants a family's predictions depend on: all programs', its chips', its own."""
    return "", _chips(family), family


def _ranges(points: list[Point]) -> dict[str, tuple[float, float]]:
    rows = [range_values(point.shape, point.cluster, point.layout, point.work) for point in points]
    return {name: (min(row[name] for row in rows), max(row[name] for row in rows)) for name in rows[0]}


def fitted_text(fit: Fit, points: list[Point]) -> str:
    """Return the constants as TOML."""
    points = [point for point in points if not point.set_aside]
    left = sum(point.is_left_out for point in points)
    lines = [
        "# Written by benchmarks/planner.py: constants fitted to the published runs in benchmarks/planner_points.toml.",
        f"# {len(points) - left} runs were fitted; steps' intervals are from the {left} that were left out.",
        "",
        "[spread]",
        f"step = {fit.spread.step:.4f}",
        f"memory = {fit.spread.memory:.4f}",
        "",
        "[ranges]",
        *(f"{name} = [{low:g}, {high:.12g}]" for name, (low, high) in fit.ranges.items()),
        "",
        "[shared]",
        f"fragmentation = {fit.fragmentation:.4f}",
        *(f"{name} = {value:.6g}" for (family, name), value in _named(fit) if not family),
    ]
    for chips in sorted({_chips(family) for family in fit.own}):
        lines += ["", f"[chips.{chips}]"]
        lines += [f"{name} = {value:.6g}" for (owner, name), value in _named(fit) if owner == chips]
    for family in sorted(fit.own):
        constants = fit.constants(family)
        lines += ["", f'[families."{family}"]']
        lines += [f"{name} = {getattr(constants, name):.6g}" for name in OWN]
    return "\n".join(lines) + "\n"


def _named(fit: Fit) -> list[tuple[tuple[str, str], float]]:
    return list(zip(fit.names, (float(value) for value in fit.vector), strict=True))


def fit_points(points: list[Point]) -> Fit:
    """Fit to the points that are not left out, and judge by those that are."""
    fitted = [point for point in points if not point.is_left_out and not point.set_aside]
    fit = Fit(fitted)
    fit.run(fitted)
    fit.judge([point for point in points if not point.set_aside])
    return fit


def rounded(fit: Fit) -> Fit:
    """Return the fit with the digits that the file holds, so that the page shows what whet predicts."""
    fit.vector = np.array([float(f"{value:.6g}") for value in fit.vector])
    fit.fragmentation = round(fit.fragmentation, 4)
    fit.spread = replace(fit.spread, step=round(fit.spread.step, 4), memory=round(fit.spread.memory, 4))
    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fit and print, and write nothing")
    check = parser.parse_args().check
    points = read_points()
    fit = rounded(fit_points(points))
    constants = [(f"{family or 'all'}: {name}", value) for (family, name), value in _named(fit)]
    constants.append(("all: fragmentation", fit.fragmentation))
    text = page([(point, fit.predict(point)) for point in points], constants, fit.spread)
    if check:
        print(text)
        return
    write_whole(FITTED, fitted_text(fit, points))
    write_whole(PAGE, text)


if __name__ == "__main__":
    main()
