"""Write the tables of docs/clusters.md from what whet ships: python tests/planner/shipped_tables.py."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from whet.planner.clusters import chips, hosts, links, nodes

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
PART = re.compile(r"(<!-- tests/planner/shipped_tables.py writes what follows -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def tables() -> str:
    """Return the four tables as Markdown."""
    return "\n".join(f"{_table(head, list(rows))}\n" for head, rows in _all())


def _all() -> Iterator[tuple[Sequence[str], Iterator[Sequence[str]]]]:
    yield (
        ("GPU", "also", "chip", "chips a node", "inside", "between", "source"),
        (
            (
                *(f"`{name}`", ", ".join(f"`{also}`" for also in one.also), one.chip, str(one.chips_per_node)),
                *(one.inside, one.between + (f", {one.oversubscription:g}:1" if one.oversubscription > 1 else "")),
                one.source,
            )
            for name, one in nodes().items()
        ),
    )
    kinds = ("float32", "tfloat32", "bfloat16", "float16", "fp8", "int8")
    yield (
        ("chip", *(f"{kind}, TFLOP/s" for kind in kinds), "GB", "GB/s", "W"),
        (
            (
                f"`{name}`",
                *(f"{one.flops[kind] / 1e12:,.4g}" if kind in one.flops else "" for kind in kinds),  # type: ignore[index]
                *(f"{one.memory_bytes / 1e9:,.0f}", f"{one.bytes_per_s / 1e9:,.0f}", f"{one.power_w:,.0f}"),
            )
            for name, one in chips().items()
        ),
    )
    yield (
        ("link", "GB/s", "latency, µs"),
        ((f"`{name}`", f"{one.bytes_per_s / 1e9:.4g}", f"{one.latency_s * 1e6:.3g}") for name, one in links().items()),
    )
    yield (
        ("host", "GB", "link to a chip", "W without chips"),
        (
            (f"`{name}`", f"{one.memory_bytes / 1e9:,.0f}", one.link.name, f"{one.power_w:,.0f}")
            for name, one in hosts().items()
        ),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(PART.sub(lambda found: found[1] + tables() + found[3], text), encoding="utf-8")
