"""The manifest: what is written is read, and what is damaged says so."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from whet.core.artefact.runtime import MANIFEST, Manifest, Runtime, read_manifest
from whet.core.signature import Argument, PyTree, Signature
from whet.errors import ArtefactError, OutputError

names = st.text("abcdefgh_", min_size=1, max_size=6)
constants = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
arguments = st.builds(
    Argument,
    name=st.none() | names,
    dtype=st.sampled_from(["float32", "int64"]),
    shape=st.lists(st.none() | st.integers(0, 9), max_size=4).map(tuple),
)
outputs = st.recursive(
    st.just(PyTree("tensor")) | st.builds(PyTree, st.just("constant"), value=constants),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: PyTree("tuple", items=tuple(items)))
        | st.dictionaries(names, inner, max_size=3).map(
            lambda d: PyTree("dict", keys=tuple(d), items=tuple(d.values()))
        )
    ),
    max_leaves=5,
)
signatures = st.builds(
    Signature,
    inputs=st.lists(arguments, max_size=3).map(tuple),
    output=outputs,
    args=st.lists(outputs, max_size=3).map(tuple),
    kwargs=st.dictionaries(names, outputs, max_size=3),
)

SIGNATURE = Signature((Argument(None, "float32", (None, 3)),), PyTree("tensor"), (PyTree("tensor"),))


class Doubling(Runtime):
    """A runtime of one file."""

    NAME = "doubling"

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(2 * t for t in tensors)

    def write(self, directory: Path) -> None:
        assert not (directory / MANIFEST).exists()  # it comes last
        (directory / "model").write_text("2")

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        return cls()

    @property
    def settings(self) -> dict[str, Any]:
        return {"factor": 2, "limit": float("inf")}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artefact")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Doubling().save(tmp_path / "deep" / "down", SIGNATURE, num_threads=2, notes=["layer 3 stays float32"])


def types(output: PyTree) -> list[type]:
    return [type(output.value), *(t for item in output.items for t in types(item))]


@given(signatures)
def test_a_signature_survives_the_manifest(directory: Path, signature: Signature) -> None:
    (directory / MANIFEST).unlink(missing_ok=True)
    Doubling().save(directory, signature)
    again = read_manifest(directory).read_signature()
    assert again == signature
    assert types(again.output) == types(signature.output)
    assert list(map(types, again.args)) == list(map(types, signature.args))
    assert {name: types(node) for name, node in again.kwargs.items()} == {
        name: types(node) for name, node in signature.kwargs.items()
    }


def test_a_manifest_holds_what_it_was_given(saved: Path) -> None:
    manifest = read_manifest(saved)
    assert (manifest.runtime, manifest.num_threads, manifest.notes) == ("doubling", 2, ["layer 3 stays float32"])
    assert manifest.settings == {"factor": 2, "limit": float("inf")}
    assert manifest.read_signature() == SIGNATURE
    assert sorted(p.name for p in saved.iterdir()) == [MANIFEST, "model"]
    assert torch.equal(Doubling().run([torch.ones(2)])[0], 2 * torch.ones(2))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="cannot write"):
            Doubling().save(path, SIGNATURE)


def test_directories_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="is no directory"):
        read_manifest(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="is no directory"):
        read_manifest(tmp_path / "file")
    with pytest.raises(ArtefactError, match=f"holds no {MANIFEST}"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"runtime": "x"}', '{"format": 2, "runtime": 3}', "\0"])
def test_a_damaged_manifest(saved: Path, text: str) -> None:
    (saved / MANIFEST).write_text(text)
    with pytest.raises(ArtefactError, match=r"is damaged .*; write it again with `whet apply`"):
        read_manifest(saved)


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9, 0.99])
def test_a_manifest_cut_short(saved: Path, cut: float) -> None:
    text = (saved / MANIFEST).read_text()
    (saved / MANIFEST).write_text(text[: int(len(text) * cut)])
    with pytest.raises(ArtefactError, match="is damaged"):
        read_manifest(saved)


def edited(saved: Path, **changes: Any) -> Path:
    data = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps(data | changes))
    return saved


def test_unknown_fields_and_signatures_are_damage(saved: Path) -> None:
    with pytest.raises(ArtefactError, match="is damaged"):
        read_manifest(edited(saved, odd=1))


@pytest.mark.parametrize(
    "signature", [{}, {"inputs": [], "constants": {}}, {"inputs": 3, "constants": {}, "output": 1}]
)
def test_a_damaged_signature(saved: Path, signature: dict[str, Any]) -> None:
    with pytest.raises(ArtefactError, match="is damaged"):
        read_manifest(edited(saved, signature=signature))


def test_another_format_says_what_to_do(saved: Path) -> None:
    with pytest.raises(ArtefactError, match="has format 3, this whet reads format 2; install a newer whet"):
        read_manifest(edited(saved, format=3, new_field=1))
    with pytest.raises(ArtefactError, match="has format 1, this whet reads format 2; write it again with `whet apply`"):
        read_manifest(edited(saved, format=1))
