"""Several processes in one study: who is there, who is gone, and which one measures the finals."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_search import applicable

from whet.core.recipe import Recipe
from whet.errors import OutputError
from whet.measure.host_turn import HostTurn
from whet.tuner import members
from whet.tuner.plan import complete
from whet.tuner.records import TrialRecord
from whet.tuner.space import Space
from whet.tuner.study import Study

SPACE = Space([applicable("bf16", "precision", bounds=[4.0])])


def recipe() -> Recipe:
    return complete(SPACE, [SPACE.techniques["bf16"].default])


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(members, "BEAT_S", 0.1)
    monkeypatch.setattr(members, "GONE_S", 1.0)
    monkeypatch.setattr(members, "_LOOK_S", 0.02)
    return f"sqlite:///{tmp_path / 'shared.db'}"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def joined(stack: ExitStack, storage: str, out: str, monkeypatch: pytest.MonkeyPatch | None = None) -> Study:
    """A study that a process takes part in; with `monkeypatch`, one on another computer."""
    study = Study.open(storage, "shared")
    if monkeypatch is None:
        stack.enter_context(study.shared(Path(out)))
        return study
    with monkeypatch.context() as there:
        there.setattr(members, "host_id", lambda: "another computer")
        stack.enter_context(study.shared(Path(out)))
    return study


def silenced(study: Study) -> None:
    """End the beats of a member, as if its process had been killed."""
    assert study.members is not None
    study.members._has_left.set()
    study.members._beating.join()


def test_one_of_those_that_wait_measures_the_finals_and_the_others_get_its_result(
    storage: str, stack: ExitStack
) -> None:
    studies = [joined(stack, storage, f"/out/{i}") for i in range(3)]
    measured: list[int] = []

    def finish(number: int) -> dict[str, object] | None:
        mine = studies[number].members
        assert mine is not None
        told = mine.finals(lambda text: None)
        if told is None:
            measured.append(number)
            time.sleep(0.3)
            mine.tell({"verdict": "gain"})
            mine.leave()
        return told

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(finish, range(3)))
    assert len(measured) == 1
    others = [told for told in found if told is not None]
    assert len(others) == 2
    for told in others:
        assert told["verdict"] == "gain"
        assert str(told["finals_on"]).endswith(f"in /out/{measured[0]}")


def test_the_finals_wait_for_those_that_still_search(storage: str, stack: ExitStack) -> None:
    first, second = joined(stack, storage, "/a"), joined(stack, storage, "/b")
    assert first.members is not None and second.members is not None
    said: list[str] = []
    mine = first.members
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mine.finals, said.append)
        time.sleep(0.5)
        assert not waiting.done()
        second.members.leave()
        assert waiting.result(10) is None
    assert said[0].startswith("Waiting for process ") and said[0].endswith("which still searches.")
    assert said[-1] == ""


def test_one_that_dies_in_the_finals_is_replaced(
    storage: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = joined(stack, storage, "/a", monkeypatch)
    assert first.members is not None
    assert first.members.finals(lambda text: None) is None
    second = joined(stack, storage, "/b")
    assert second.members is not None
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.members.finals, said.append)
        time.sleep(1.5)
        assert not waiting.done(), "it lives: its beats are seen"
        silenced(first)
        assert waiting.result(20) is None
    assert "which measures the finals" in said[0]


def test_a_result_of_finals_that_began_before_this_search_ended_is_not_taken(storage: str, stack: ExitStack) -> None:
    first = joined(stack, storage, "/a")
    assert first.members is not None
    assert first.members.finals(lambda text: None) is None
    late = joined(stack, storage, "/b")
    assert late.members is not None
    first.members.tell({"verdict": "no-gain"})
    first.members.leave()
    assert late.members.finals(lambda text: None) is None


def test_a_trial_of_another_computer_is_given_up_once_its_process_is_silent(
    storage: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = joined(stack, storage, "/there", monkeypatch)
    number, chosen = there.begin(recipe(), SPACE)
    here = joined(stack, storage, "/here")
    time.sleep(1.5)
    assert [record.number for record in here.records()] == [number]
    assert here.is_taken(number + 1, chosen)
    silenced(there)
    deadline = time.monotonic() + 20
    while here.records():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # What the silent process says of it afterwards is dropped: the trial is made again.
    there.end(TrialRecord(number=number, steps=chosen.steps, status="done"), 1.0)
    assert here.records() == []
    assert not here.is_taken(number + 1, chosen)


def test_those_that_share_a_computer_measure_one_after_the_other() -> None:
    at_once, most, waited = [0], [0], list[str]()
    lock = threading.Lock()

    def measure(_: int) -> float:
        turn = HostTurn(waited.append)
        with turn.taken():
            with lock:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
            time.sleep(0.1)
            with lock:
                at_once[0] -= 1
        return turn.waited_s

    with ThreadPoolExecutor(4) as pool:
        seconds = list(pool.map(measure, range(4)))
    assert most == [1]
    assert max(seconds) > 0.2
    assert waited.count("") == len(waited) // 2 >= 1
    with HostTurn(is_shared=False).taken(), HostTurn(is_shared=False).taken():
        pass


def test_the_lock_of_turns_lies_where_no_other_user_can_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))
    with HostTurn().taken():
        [lock] = (tmp_path / "cache").iterdir()
        assert lock.stat().st_mode & 0o077 == 0
    lock.unlink()
    lock.mkdir()
    with pytest.raises(OutputError, match=r"cannot be locked .* name another place in WHET_CACHE"), HostTurn().taken():
        pass
