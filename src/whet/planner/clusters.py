"""Find the cluster that a name stands for, or read one's own from a TOML file, by the descriptions that whet ships."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from whet.core.toml_file import problems, read_toml
from whet.errors import OptionError
from whet.planner.cluster import Chip, Cluster, Host, Link, Sourced
from whet.planner.named import found_by_name

_SHIPPED = Path(__file__).with_name("descriptions")
_PARTS = {"chip": "chips", "host": "hosts", "inside": "links", "between": "links", "link": "links"}
_LIKE, _ALSO = "like", "also"


class Node(Sourced):
    """Say what kind of node the name of a GPU stands for, by names of what whet ships.

    Attributes:
        also: Other names of it.
    """

    chip: str
    chips_per_node: int
    host: str
    inside: str
    between: str
    oversubscription: float = Field(default=1.0, ge=1)
    also: tuple[str, ...] = ()


@cache
def chips() -> dict[str, Chip]:
    """Return the chips that whet ships, by name."""
    return {name: Chip.model_validate({"name": name, **table}) for name, table in _tables("chips").items()}


@cache
def links() -> dict[str, Link]:
    """Return the links that whet ships, by name."""
    return {
        name: Link.model_validate({"name": name} | {key: value for key, value in table.items() if key != _ALSO})
        for name, table in _tables("links").items()
    }


@cache
def hosts() -> dict[str, Host]:
    """Return the hosts that whet ships, by name."""
    return {
        name: Host.model_validate({"name": name, **table, "link": links()[table["link"]]})
        for name, table in _tables("hosts").items()
    }


@cache
def nodes() -> dict[str, Node]:
    """Return the kinds of nodes that whet ships, by the name of their chips."""
    return {name: Node.model_validate(table) for name, table in _tables("nodes").items()}


@cache
def _links_by_all_names() -> dict[str, Link]:
    return {also: links()[name] for name, table in _tables("links").items() for also in (name, *table.get(_ALSO, ()))}


@cache
def _chips_by_all_names() -> dict[str, Chip]:
    """Return the chips, which have the names of their nodes too."""
    return chips() | {also: chips()[node.chip] for also, node in _nodes_by_all_names().items()}


@cache
def _nodes_by_all_names() -> dict[str, Node]:
    return {also: node for name, node in nodes().items() for also in (name, *node.also)}


@cache
def _tables(what: str) -> dict[str, Any]:
    return tomllib.loads((_SHIPPED / f"{what}.toml").read_text(encoding="utf-8"))


def cluster_named(
    gpu: str,
    number: int,
    *,
    chips_per_node: int | None = None,
    inside: str | None = None,
    between: str | None = None,
) -> Cluster:
    """Return a cluster of the chips that a name stands for, in the nodes that are usual for them.

    Args:
        gpu: The name of a chip, such as "h100" or "a100-pcie-40"; upper and lower case are the same.
        number: All chips.
        chips_per_node: Another number of chips in a node.
        inside: The name of another link within nodes, such as "pcie5".
        between: The name of another link between nodes, such as "eth100".

    Raises:
        OptionError: A name is unknown, or the chips do not fill nodes.
    """
    node = found_by_name(_nodes_by_all_names(), gpu, "GPU")
    if number < 1:
        raise OptionError(f"a cluster has one chip at least; got {number}")
    if chips_per_node is not None and chips_per_node < 1:
        raise OptionError(f"a node has one chip at least; got {chips_per_node}")
    per_node = chips_per_node or node.chips_per_node
    return Cluster(
        name=gpu.strip().lower(),
        chip=chips()[node.chip],
        chips_per_node=per_node,
        num_chips=per_node,
        host=hosts()[node.host],
        inside=found_by_name(_links_by_all_names(), inside or node.inside, "link"),
        between=found_by_name(_links_by_all_names(), between or node.between, "link"),
        oversubscription=node.oversubscription if between is None else 1.0,
    ).with_chips(number)


def read_cluster(path: Path) -> Cluster:
    """Read the description of a cluster; docs/clusters.md lists its keys.

    A chip, a host or a link is the name of one that whet ships, a table with all of its keys, or a table with
    `like = NAME` and the keys that differ.

    Raises:
        TargetError: The file cannot be read, or is no TOML.
        OptionError: A key or a name is unknown, a value is out of its range, or the chips do not fill nodes.
    """
    raw = read_toml(path, "description of a cluster")
    try:
        filled = _filled(raw, path.name)
        cluster = Cluster.model_validate(filled, strict=True)
        return cluster.with_chips(cluster.num_chips)
    except ValidationError as error:
        raise OptionError(f"{path}: {problems(error, Cluster)}") from error
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from error


def _filled(table: dict[str, Any], file: str, above: str = "") -> dict[str, Any]:
    """Return a table with each name in it replaced by what whet ships under that name."""
    filled = dict(table)
    for key, what in _PARTS.items():
        given = filled.get(key)
        where = f"{above}{key}"
        if isinstance(given, str):
            filled[key] = _shipped(what, given, where)
        elif isinstance(given, dict):
            own = _filled(given, file, f"{where}.")
            filled[key] = _merged(own, what, file, where) if _LIKE in own else own
    return filled


def _merged(own: dict[str, Any], what: str, file: str, where: str) -> dict[str, Any]:
    """Return what whet ships under the name that is meant, with the keys of the file in the place of its own."""
    name = own.pop(_LIKE)
    if not isinstance(name, str):
        raise OptionError(f"{where}.{_LIKE}: give the name of one of the {what} that whet ships")
    shipped = _shipped(what, name, f"{where}.{_LIKE}")
    changed = ", ".join(key for key in own if key != "source") or "nothing"
    source = f"{own.get('source', file)} ({changed}); else {shipped['source']}"
    return {**shipped, **own, "source": source}


def _shipped(what: str, name: str, where: str) -> dict[str, Any]:
    every: dict[str, Mapping[str, Sourced]] = {
        "chips": _chips_by_all_names(),
        "hosts": hosts(),
        "links": _links_by_all_names(),
    }
    return found_by_name(every[what], name, what.removesuffix("s"), f"{where}: ").model_dump(exclude_none=True)
