"""Cores and memory for several replicas, and what each one is told, checked before anything is loaded."""

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from whet.core.recipe import Recipe, Step
from whet.errors import OptionError, TargetError
from whet.kernels.linear.places import HUGE_PAGE
from whet.measure.cores import allowed_cores, core_numbers, core_shares
from whet.server.asked import Asked
from whet.server.footprint import PROGRAM_BYTES
from whet.server.http.settings import Settings
from whet.server.options import EngineOptions
from whet.server.replicas.fit import fitted, shares_of_cores, shares_weights
from whet.server.replicas.needs import Needs, needs_in_child, needs_of
from whet.server.replicas.serving import _sharing
from whet.workloads import WEIGHTS

GIB = 2**30


def nodes(directory: Path, *lists: str) -> Path:
    for number, cores in enumerate(lists):
        (directory / f"node{number}").mkdir()
        (directory / f"node{number}" / "cpulist").write_text(cores + "\n")
    return directory


@pytest.mark.parametrize(
    ("number", "lists", "shares"),
    [
        (2, ["0-7"], [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (3, ["0-7"], [(0, 1), (2, 3, 4), (5, 6, 7)]),
        (2, ["0-3", "4-7"], [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (1, ["0-3", "4-7"], [(0, 1, 2, 3, 4, 5, 6, 7)]),
        (4, ["0-3", "4-7"], [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (3, ["0-5", "6-7"], [(0, 1, 2), (3, 4, 5), (6, 7)]),
        (2, ["0-1", "2-3", "4-7"], [(4, 5, 6, 7), (0, 1, 2, 3)]),
        (2, [], [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ],
)
def test_cores_are_divided_by_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, lists: list[str], shares: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr("whet.measure.cores._CORES", tmp_path / "no-siblings")
    assert core_shares(number, range(8), nodes(tmp_path, *lists)) == shares


def test_siblings_stay_together_and_other_cores_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.measure.cores._CORES", tmp_path / "cores")
    for core in range(8):
        directory = tmp_path / "cores" / f"cpu{core}" / "topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert core_shares(2, range(8), nodes(tmp_path, "0-7")) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert core_shares(2, [1, 2, 5], tmp_path) == [(1,), (2, 5)] or core_shares(2, [1, 2, 5], tmp_path) == [
        (1, 5),
        (2,),
    ]
    assert core_numbers("0-2,8") == (0, 1, 2, 8) and core_numbers("all") == ()


def test_the_number_of_replicas_is_checked() -> None:
    most = len(allowed_cores())
    assert sorted(core for share in shares_of_cores(most) for core in share) == sorted(allowed_cores())
    with pytest.raises(OptionError, match=f"--replicas {most + 1}: each replica needs a core of its own"):
        shares_of_cores(most + 1)
    with pytest.raises(OptionError, match="--replicas 0: at least 1"):
        shares_of_cores(0)


def test_what_replicas_need_is_known_without_torch() -> None:
    with safe_open(WEIGHTS / "docs-gpt" / "model.safetensors", "pt") as file:
        numbers = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    asked = Asked(model="docs-gpt", settings=Settings(served_names=("model",), api_keys=("secret",)))
    whole = needs_of(asked)
    assert 2 * numbers <= whole.weights_bytes < 1.5 * (2 * numbers) + HUGE_PAGE
    assert PROGRAM_BYTES < whole.private_bytes < PROGRAM_BYTES + 64 * 2**20
    assert (whole.num_engines, Path(whole.cache).name) == (1, "weights")
    small = here(replace(asked, weights="int4"))
    assert small.weights_bytes < whole.weights_bytes and small.private_bytes == whole.private_bytes
    two = here(replace(asked, models={"other": "docs-gpt"}))
    assert (two.weights_bytes, two.num_engines) == (2 * whole.weights_bytes, 2)
    with pytest.raises(TargetError, match="nowhere is no directory"):
        here(Asked(model="nowhere"))


def here(asked: Asked) -> Needs:
    return Needs(**needs_in_child(**asked.as_json()))


def test_memory_is_divided_or_refused() -> None:
    needs = Needs(weights_bytes=2 * GIB, private_bytes=GIB, num_engines=1, cache="")
    asked = Asked(model="docs-gpt")
    assert shares_weights(asked, needs) and not shares_weights(asked, replace(needs, num_engines=0))
    assert not shares_weights(Asked(options=EngineOptions(tensor_parallel_size=2)), needs)
    shared = EngineOptions(shared_weights="somewhere")
    assert fitted(asked, 4, needs, 100 * GIB).options.memory == (100 - 4 * 3) * GIB // 16
    assert fitted(Asked(options=shared), 4, needs, 100 * GIB).options.memory == (100 - 2 - 4) * GIB // 16
    stated = Asked(model="docs-gpt", options=EngineOptions(memory=3 * GIB))
    assert fitted(stated, 3, needs, 18 * GIB) is stated
    with pytest.raises(OptionError, match=r"--replicas 3: each needs at least 6\.44 GB of memory\..*take 2 at most"):
        fitted(stated, 3, needs, 17 * GIB)
    both = Asked(options=replace(shared, memory=3 * GIB))
    assert fitted(both, 3, needs, 14 * GIB) is both
    said = r"each needs at least 4\.29 GB of memory, and 2\.15 GB for the weights that they share\..*take 2 at most"
    with pytest.raises(OptionError, match=said):
        fitted(both, 3, needs, 13 * GIB)
    with pytest.raises(OptionError, match="not even one"):
        fitted(both, 2, needs, GIB)


def test_without_a_place_for_shared_weights_each_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    needs = Needs(weights_bytes=2**60, private_bytes=1, num_engines=1, cache=str(tmp_path / "file" / "weights"))
    asked, said = Asked(model="docs-gpt"), list[str]()
    with ExitStack() as stack:
        assert _sharing(asked, needs, said.append, stack) is asked
        [line] = said
        assert line.startswith("each replica has weights of its own: cannot make a directory for shared weights in")
        there = replace(needs, cache=str(tmp_path / "weights"))
        shared = _sharing(asked, there, said.append, stack).options.shared_weights
        assert shared is not None and Path(shared).parent == tmp_path / "weights" and Path(shared).is_dir()
        own = Asked(options=EngineOptions(shared_weights="own"))
        assert _sharing(own, there, said.append, stack) is own
    assert not Path(shared).exists() and len(said) == 1


def test_ranks_share_no_weights() -> None:
    with pytest.raises(
        OptionError, match=r"shared_weights='there' with tensor_parallel_size=2: .*leave shared_weights"
    ):
        EngineOptions(shared_weights="there", tensor_parallel_size=2)


def test_what_a_replica_is_told_comes_back_from_json() -> None:
    settings = Settings(served_names=("a", "b"), api_keys=("key",), cors_origins=("http://a.org",), max_connections=7)
    asked = Asked(
        model="docs-gpt",
        models={"other": "elsewhere"},
        names=("a", "b"),
        options=EngineOptions(weights="int8", memory=5, shared_weights=Path("there")),
        settings=settings,
        recipe=Recipe(steps=[Step(technique="threads", options={"num_threads": 1})]),
        libraries=("ops.py",),
        max_waiting=3,
    )
    back = Asked.from_json(json.loads(json.dumps(asked.as_json())))
    assert back.as_json() == asked.as_json()
    assert back.recipe == asked.recipe
    assert back.options.shared_weights == "there"
    assert back.settings.api_keys == ("key",)
    inner = back.inner(shutdown_timeout_s=1.0, write_timeout_s=9.0).settings
    assert (inner.cors_origins, inner.api_keys, inner.shutdown_timeout_s) == ((), ("key",), 1.0)
