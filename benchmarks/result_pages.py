"""Write docs/results.md, the list of what was measured, and docs/results/SUBJECT.md, a page for each subject."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from whet.files import write_whole

_RELATIVE = re.compile(r"(\]\()(?![a-z]+:|#|/)")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_NOT_IN_SLUGS = re.compile(r"[^\w\- ]")
_HEAD = """# Measured results

`python benchmarks/results.py` wrote these pages from the figures of the benchmark scripts; nothing in them is typed by
hand. Each table says where it was measured, and times of different machines cannot be compared
([why two machines differ](machines.md)). Ratios are measured in pairs within one run and have 95% bootstrap intervals.

Some tables name a goal. These goals are whet's own. A goal is *reached* if the whole interval reaches it, and *missed*
if no part of it does. Otherwise it is *open*: the measurements do not decide it.
"""


class Subject(NamedTuple):
    """A page: its file's name, its title, and the figures that are on it, by the beginning of their file's name."""

    name: str
    title: str
    figures: tuple[str, ...]


SUBJECTS = (
    Subject("models", "Results: Tuned models", ("demo", "peers", "native_peers")),
    Subject(
        "training", "Results: Training",
        ("train_peers", "loss_kernel", "packed_attention", "loader", "prepare_overhead", "checkpointing", "train_loop",
         "tinyshakespeare", "foreign_scripts", "latentwire", "tokenising", "compression", "parallel",
         "plan_here"),
    ),
    Subject(
        "serving", "Results: Serving",
        ("serve_peers", "guided", "serve_artefacts", "serve_replicas", "shared_weights", "serve_tensor_parallel",
         "serve_ray"),
    ),
    Subject(
        "state-space-models", "Results: State-space models and long texts",
        ("selective_", "families_", "long_context", "recall", "memory_table", "million_tokens"),
    ),
    Subject("streams", "Results: Streams of frames", ("signs_stream", "stream_peers", "drift_")),
    Subject(
        "measuring", "Results: Measuring, auditing, the gate",
        ("gate", "busy", "overhead", "trace_", "audit_", "judge_", "startup", "search_"),
    ),
    Subject("machine", "Results: The machine's limits, and whet's operators", ("limits", "operators")),
    Subject("gpu", "Results: On a GPU", ("gpu",)),
)  # fmt: skip


def write_pages(docs: Path, parts: Mapping[str, str]) -> None:
    """Write the pages. `parts` are sections, each with a heading, by the names of the files with their figures.

    Raises:
        ValueError: A section is of no subject.
    """
    left, listed = dict(parts), []
    for subject in SUBJECTS:
        own = [left.pop(name) for name in parts if name in left and name.startswith(subject.figures)]
        if not own:
            continue
        text = "\n".join([f"# {subject.title}\n\nHow to read these tables: [results](results.md).\n", *own])
        write_whole(docs / "results" / f"{subject.name}.md", _RELATIVE.sub(r"\1../", text))
        listed += [f"\n## {subject.title.partition(': ')[2]}\n"]
        headings = [heading for section in own for heading in _HEADING.findall(section)]
        listed += [f"- [{heading}](results/{subject.name}.md#{_slug(heading)})" for heading in headings]
    if left:
        raise ValueError(f"no subject of benchmarks/result_pages.py takes {', '.join(left)}")
    write_whole(docs / "results.md", "\n".join([_HEAD.rstrip(), *listed, ""]))


def _slug(heading: str) -> str:
    """Return a heading's anchor, as GitHub and the site make it."""
    return _NOT_IN_SLUGS.sub("", heading.strip().lower()).replace(" ", "-")
