"""For tests of models that an engine runs: texts that are read in parts, and models of transformers to compare with."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

Part = tuple[int, int, int]
"""Name a text, and the first token and the end of what is read of it."""


def assert_cuts_do_not_show(
    data: st.DataObject,
    texts: Sequence[Tensor],
    alone: Sequence[Tensor],
    run: Callable[[list[Part]], list[Tensor]],
    sizes: Sequence[int],
) -> None:
    """Read texts in steps drawn at random, and check that all logits are those of each text alone, bit for bit.

    Args:
        data: Draws the steps.
        texts: The tokens of each text.
        alone: The logits of each text, read in one step by itself.
        run: Makes a step of parts, and returns the logits of each.
        sizes: The numbers of tokens that a step may read of a text.
    """
    done = [0] * len(texts)
    parts: list[list[Tensor]] = [[] for _ in texts]
    while any(num < len(ids) for num, ids in zip(done, texts, strict=True)):
        waiting = [i for i, ids in enumerate(texts) if done[i] < len(ids)]
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        ends = {i: min(len(texts[i]), done[i] + data.draw(st.sampled_from(sizes))) for i in chosen}
        for i, result in zip(chosen, run([(i, done[i], ends[i]) for i in chosen]), strict=True):
            parts[i].append(result)
            done[i] = ends[i]
    for whole, pieces in zip(alone, parts, strict=True):
        assert torch.equal(torch.cat(pieces), whole)


class Read(NamedTuple):
    """Name what a step reads of a sequence: the tokens from `begin` on, in a row, settled up to a position."""

    ids: Tensor
    begin: int
    row: int
    settled: int


def assert_drafts_do_not_show(
    data: st.DataObject,
    texts: Sequence[Tensor],
    alone: Sequence[Tensor],
    run: Callable[[list[Read]], list[Tensor]],
    num_drafts: int,
    num_steps: int = 12,
) -> None:
    """Read texts with drafts drawn at random, right and wrong, go back over some, and check all logits bit for bit.

    Args:
        data: Draws the steps.
        texts: The tokens of each text. It is read in the row of its number.
        alone: The logits of each text, read in one step by itself.
        run: Makes a step, and returns the logits of each sequence.
        num_drafts: The most tokens of a sequence that are not settled.
        num_steps: How many steps to draw.
    """
    places = [0] * len(texts)  # where the next step begins
    settled = [0] * len(texts)
    for _ in range(num_steps):
        chosen = data.draw(st.lists(st.sampled_from(range(len(texts))), min_size=1, unique=True))
        reads, right = [], []
        for i in chosen:
            if places[i] >= len(texts[i]) or data.draw(st.integers(0, 15)) == 0:
                places[i] = settled[i] = 0  # another sequence in the same row
            size = data.draw(st.one_of(st.integers(1, num_drafts + 1), st.integers(1, 150)))
            end = min(len(texts[i]), places[i] + size)
            settled[i] = data.draw(st.integers(max(settled[i], end - num_drafts), end))
            wrong = data.draw(st.integers(max(settled[i], places[i]), end))  # the first wrong draft, or the end
            ids = texts[i][places[i] : end].clone()
            ids[wrong - places[i] :] = (ids[wrong - places[i] :] + 1) % 90
            reads.append(Read(ids, places[i], i, settled[i]))
            right.append(wrong)
        for read, wrong, logits in zip(reads, right, run(reads), strict=True):
            count = wrong - read.begin
            assert torch.equal(logits[:count], alone[read.row][read.begin : wrong])
            places[read.row] = data.draw(st.integers(read.settled, wrong))


def saved_by_transformers(directory: Path, family: str, sizes: dict[str, Any], shard_size: str) -> Any:
    """Return a causal model of transformers with random weights, norms and biases too, after saving it."""
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**sizes)).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    theirs.save_pretrained(directory, max_shard_size=shard_size)
    return theirs
