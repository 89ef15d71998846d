"""Derive conditions on integer inputs from the number of rows of the embeddings that they index.

PyTorch raises IndexError for a row that does not exist. OpenVINO and ONNX Runtime return another row for -1, OpenVINO
does so for any index, and code compiled by inductor ends the process.
"""

import re
from collections.abc import Iterator, Sequence

import torch
from torch import fx

# What hands every element on and changes none.
_PASSING_ON = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "transpose", "permute", "t", "expand", "unsqueeze",
    "squeeze", "contiguous", "clone", "detach", "alias", "to", "_to_copy",
})  # fmt: skip


_LARGEST = re.compile(r"L\['largest'\]\[(\d+)\] <= (\d+)")


def conditions_on_indices(program: torch.export.ExportedProgram) -> list[str]:
    """Return conditions, as guards read them, on inputs that a program looks up in a table."""
    names = {name: i for i, name in enumerate(program.graph_signature.user_inputs)}
    conditions = []
    for node in program.graph_module.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            rows = min(_rows_of_tables(node), default=None)
            if rows is not None:
                place = names[node.name]
                conditions += [f"L['least'][{place}] >= 0", f"L['largest'][{place}] <= {rows - 1}"]
    return conditions


def largest_indices(conditions: Sequence[str]) -> dict[int, int]:
    """Return the largest index that each input may hold, by its place, from the conditions of an artefact."""
    found: dict[int, int] = {}
    for condition in conditions:
        if match := _LARGEST.fullmatch(condition):
            place, largest = map(int, match.groups())
            found[place] = min(found.get(place, largest), largest)
    return found


def _rows_of_tables(node: fx.Node) -> Iterator[int]:
    """Yield the number of rows of every table in which all elements of a node are looked up."""
    for user in node.users:
        if not isinstance(user.target, torch._ops.OpOverload):
            continue
        name = user.target._schema.name.removeprefix("aten::")
        if name == "embedding" and user.args[1] is node and isinstance(user.args[0], fx.Node):
            rows = user.args[0].meta["val"].shape[0]
            if isinstance(rows, int):
                yield rows
        elif name in _PASSING_ON and user.args[0] is node:
            yield from _rows_of_tables(user)
