"""whet.load: calls, threads, and directories that are no artefact."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_programs import save, small

import whet
from whet.core.artefact import MANIFEST, Artefact, load
from whet.errors import ArtefactError, InputsError
from whet.techniques.technique import Candidate


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(small(), tmp_path_factory.mktemp("artefact") / "model")


@pytest.fixture
def artefact(directory: Path) -> Artefact:
    return load(directory)


@pytest.fixture
def same_threads_after() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_an_artefact_is_called_as_the_original(artefact: Artefact) -> None:
    x = torch.randn(3, 4)
    expected = small().workload.model(x)
    found = artefact(x)
    torch.testing.assert_close(found.logits, expected["logits"].detach())
    torch.testing.assert_close(found["logits"], found[0])
    assert torch.equal(found.rest[0], expected["rest"][0])
    assert found.rest[1] == "text"


def test_run_takes_and_gives_flat_tensors(artefact: Artefact) -> None:
    x = torch.randn(3, 4)
    logits, top = artefact.run(x)
    torch.testing.assert_close(logits, artefact(x).logits)
    assert torch.equal(top, logits.argmax(-1))


def test_strings_and_paths_are_taken(directory: Path) -> None:
    assert isinstance(whet.load(str(directory)), whet.Artefact)


def test_calls_that_do_not_fit_are_refused(artefact: Artefact) -> None:
    with pytest.raises(InputsError, match=r"this model takes \(float32\[any, 4\]\) but was called with \(\)"):
        artefact()
    with pytest.raises(InputsError, match=r"x: float32\[3, 4\]"):
        artefact(x=torch.randn(3, 4))
    with pytest.raises(InputsError, match=r"int64\[3, 4\]"):
        artefact(torch.ones(3, 4, dtype=torch.int64))


def test_threads_are_set_where_the_artefact_says_so(tmp_path: Path, same_threads_after: int) -> None:
    candidate = Candidate.original(small())
    candidate.save(tmp_path / "plain")
    load(tmp_path / "plain")
    assert torch.get_num_threads() == same_threads_after
    Candidate(candidate.examined, candidate.module, num_threads=same_threads_after + 1).save(tmp_path / "threads")
    load(tmp_path / "threads")
    assert torch.get_num_threads() == same_threads_after + 1


def test_directories_that_are_no_artefact(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="is no directory; give one that `whet tune` or `whet apply` wrote"):
        load(tmp_path / "missing")
    with pytest.raises(ArtefactError, match=f"holds no {MANIFEST}"):
        load(tmp_path)


def test_a_runtime_of_another_whet(tmp_path: Path) -> None:
    save(small(), tmp_path)
    data = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(data | {"runtime": "quantum"}))
    with pytest.raises(ArtefactError, match="needs the runtime 'quantum', which this whet does not have"):
        load(tmp_path)
