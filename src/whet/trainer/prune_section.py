"""Define the table [prune] of the configuration of whet train."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from whet.trainer.section import Count, Section, Share


class PruneSection(Section):
    """Say what is pruned.

    Attributes:
        kind: "unstructured" sets the smallest weights to zero while the model trains. "structured" cuts whole parts out
            of a trained model before the first step, so that it becomes smaller and faster.
        amount: The share that goes: of the weights, or of each part that `what` names.
        scope: For unstructured pruning: "global" for one threshold over the model, "layer" for one in each weight.
        begin_step: For unstructured pruning: the step after which weights begin to become zero.
        end_step: The step after which so many are zero; None for half of the run.
        interval: The steps between two cuts.
        what: For structured pruning, the parts: "mlp" (channels), "heads" (key-value heads with their query heads),
            "layers", "width" (the numbers that a token is in the model).
        importance: What tells which parts matter: "taylor" (gradients on the first batches) or "magnitude".
        num_batches: The batches that it is found on; None for 8.
    """

    kind: Literal["unstructured", "structured"] = "unstructured"
    amount: Share
    scope: Literal["global", "layer"] = "global"
    begin_step: Annotated[int, Field(ge=0)] = 0
    end_step: Annotated[int, Field(ge=0)] | None = None
    interval: Count = 10
    what: tuple[Literal["mlp", "heads", "layers", "width"], ...] = ("mlp", "heads")
    importance: Literal["taylor", "magnitude"] = "taylor"
    num_batches: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_list(cls, data: Any) -> Any:
        """Take a single part for a list of one."""
        if isinstance(data, dict) and isinstance(data.get("what"), str):
            return {**data, "what": [data["what"]]}
        return data

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "PruneSection":
        others = _OF_STRUCTURED if self.kind == "unstructured" else _OF_UNSTRUCTURED
        if given := sorted(others & self.model_fields_set):
            why = (
                "cuts weights, not parts"
                if self.kind == "unstructured"
                else "cuts parts of the whole model once, before the first step"
            )
            raise ValueError(f"{given[0]} changes nothing, since {self.kind} pruning {why}; leave it out")
        if not self.what or len(set(self.what)) != len(self.what):
            raise ValueError("what must name each part once, and at least one")
        return self

    def last_cut(self, steps: int) -> int:
        """Return the step after which the last weights become zero, in a run of so many steps."""
        return max(self.begin_step, steps // 2) if self.end_step is None else self.end_step


_OF_STRUCTURED = frozenset({"what", "importance", "num_batches"})
_OF_UNSTRUCTURED = frozenset({"scope", "begin_step", "end_step", "interval"})
