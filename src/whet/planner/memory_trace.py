"""Hold what a trace of one rank found of its memory, beside what the formulas say."""

from pydantic import BaseModel, ConfigDict, computed_field

from whet.planner.layout import Layout


class TracedPart(BaseModel):
    """Hold one part of a rank's memory.

    Attributes:
        name: A part of MemoryParts.
        formula: The bytes that the formulas say.
        traced: The bytes that the trace found; None where it can find none.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    formula: float
    traced: float | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def source(self) -> str:
        """Return where the figure to take is from: "traced" or "formula"."""
        return "formula" if self.traced is None else "traced"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def difference(self) -> float | None:
        """Return by which share the formulas say more than the trace; None where there is no trace."""
        return self.formula / self.traced - 1 if self.traced else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def best(self) -> float:
        """Return the figure to take, in bytes."""
        return self.formula if self.traced is None else self.traced


class MemoryTrace(BaseModel):
    """Hold the memory of the rank that needs most, as one rank's steps without numbers show it.

    Attributes:
        layout: The layout that was traced, which may differ from the plan's.
        parts: The parts of its memory.
        differs: What of the plan the trace does otherwise, or leaves to the formulas.
        why_not: Why nothing was traced; "" where something was.
        phase: What the rank does when it holds most: "forward", "backward" or "update".
        ranks: How many ranks the traced one is one of.
        num_layers: The layers that were traced; fewer than the model's where the rest follow in proportion.
        seconds: How long the trace took.
    """

    model_config = ConfigDict(frozen=True)

    layout: Layout
    parts: tuple[TracedPart, ...]
    differs: tuple[str, ...] = ()
    why_not: str = ""
    phase: str = ""
    ranks: int = 1
    num_layers: int = 0
    seconds: float = 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> float:
        """Return the bytes of all parts: traced ones where there are."""
        return sum(one.best for one in self.parts)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def formula_total(self) -> float:
        """Return the bytes that the formulas say of the traced layout."""
        return sum(one.formula for one in self.parts)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def difference(self) -> float | None:
        """Return by which share the formulas say more than the trace; None where nothing was traced."""
        return None if self.why_not else self.formula_total / self.total - 1
