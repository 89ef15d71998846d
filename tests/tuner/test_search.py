"""The search with trials of pure arithmetic: order, groups, rejection, failure, interruption, resumption."""

import shutil
import sqlite3
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_search import FakeRunner, applicable, context, search, techniques

from whet.core.recipe import Recipe, Step
from whet.errors import StudyError
from whet.measure.isolate import Function, Outcome
from whet.measure.load import Load
from whet.measure.quiet import QuietWait
from whet.techniques import TABLE
from whet.techniques.applicability import options_that_apply
from whet.techniques.technique import Applies, NotApplicable
from whet.tuner.goal import Goal, ranked
from whet.tuner.plan import compile_only, complete, next_recipe
from whet.tuner.records import TrialRecord
from whet.tuner.search import SearchTime
from whet.tuner.space import ApplicableTechnique, Space
from whet.tuner.study import FILE, Study, default_storage
from whet.tuner.trial import TrialRequest

FOREVER = SearchTime(1e9, 1e9, clock=lambda: 0.0)


def run(directory: Path, runner: FakeRunner, *, max_trials: int = 30, goal: Goal = Goal()) -> list[TrialRecord]:  # noqa: B008
    directory.mkdir(exist_ok=True)
    study = Study.open(default_storage(directory), "test")
    return search(context(directory, runner), study, goal, FOREVER, max_trials=max_trials)


def labels(records: list[TrialRecord]) -> list[str]:
    return [record.label for record in records]


def test_torch_compile_alone_comes_first_then_the_largest_bound(tmp_path: Path) -> None:
    records = run(tmp_path, FakeRunner(), max_trials=3)
    assert labels(records)[0] == "inductor(engine=jit, freezing=false)"
    assert labels(records)[1] == "openvino(precision=int8)"
    assert labels(records)[2] == "int8_static + inductor(engine=package, freezing=true)"


def test_where_nothing_can_be_saved_every_recipe_works_in_process(tmp_path: Path) -> None:
    """torch.export refuses the model: only techniques that keep its code apply, and none can ship alone."""
    found = [
        applicable("autocast", "precision", bounds=[4.0]),
        applicable("torch_compile", "backend", bounds=[2.0]),
        applicable("threads", options={"num_threads": [2, 1]}, bounds=[1.5]),
    ]
    trials = context(tmp_path, FakeRunner(), applicable=found)
    study = Study.open(default_storage(tmp_path), "test")
    records = search(trials, study, Goal(), FOREVER, max_trials=12)
    assert labels(records)[:2] == ["torch_compile", "autocast + torch_compile"]
    assert compile_only(Space(trials.facts.applicable)) == Recipe(steps=[Step(technique="torch_compile")])
    assert len(records) > 3  # the plan's, and some of the sampler's
    assert all("torch_compile" in {step.technique for step in record.steps} for record in records)


def test_no_recipe_claims_a_group_twice_or_is_tried_twice(tmp_path: Path) -> None:
    records = run(tmp_path, FakeRunner())
    assert len(labels(records)) == len(set(labels(records)))
    groups = {entry.technique: entry.groups for entry in techniques()}
    for record in records:
        claimed = [g for step in record.steps for g in groups[step.technique]]
        assert len(claimed) == len(set(claimed)), record.label


def test_quality_is_given_back_to_the_fastest_that_lost_it(tmp_path: Path) -> None:
    records = run(tmp_path, FakeRunner())
    lossy = [r for r in records if r.status == "rejected"]
    assert any({s.technique for s in r.steps} == {"int8_static", "inductor"} for r in lossy)
    best = ranked(Goal(), records)[0]
    assert {"int8_static", "keep_precision", "inductor"} <= {s.technique for s in best.steps}
    assert best.drop == 0.0


def test_a_runtime_that_chooses_its_own_layers_is_asked_for_them() -> None:
    """keep_precision marks layers for those that read such marks; OpenVINO does not, and has an option of its own."""
    keep = applicable("keep_precision", options={"layers": [2]})
    options = {"precision": ["int8"], "keep": [0, 4, 12]}
    openvino = applicable("openvino", "backend", "precision", options=options, bounds=[9.0])
    space = Space([keep, openvino])
    records: list[TrialRecord] = []
    for number in range(3):
        recipe = next_recipe(space, records, Goal())
        assert recipe is not None
        records.append(
            TrialRecord(number=number, steps=list(recipe), status="rejected", speedup=5.0 - number, drop=0.05)
        )
    assert [r.steps[0].options["keep"] for r in records] == [0, 4, 12]
    assert all(len(r.steps) == 1 for r in records)


def test_values_of_other_options_are_offered_beside_the_one_that_applies() -> None:
    """As calibration methods where the chip has no bfloat16, the default of `rest`."""

    def check(examined: object, machine: object, options: SimpleNamespace) -> Applies | NotApplicable:
        return Applies(options.rest) if options.rest == "float32" else NotApplicable("no bfloat16")

    technique = SimpleNamespace(
        space={"calibration": ("minmax", "entropy"), "rest": ("bfloat16", "float32")},
        options=SimpleNamespace,
        check=check,
        favours=None,
    )
    options, detail, _ = options_that_apply(technique, None, None)  # type: ignore[arg-type]
    assert options == {"calibration": ["minmax", "entropy"], "rest": ["float32"]}
    assert detail == "float32"


def test_what_a_technique_favours_is_tried_first_where_it_applies() -> None:
    """As CUDA graphs before packages on a GPU, unless Triton is missing."""

    def options(device: str, has_triton: bool) -> dict[str, list[Any]] | None:
        def check(subject: object, machine: object, options: SimpleNamespace) -> Applies | NotApplicable:
            is_refused = options.engine != "package" and not has_triton
            return NotApplicable("no Triton") if is_refused else Applies(options.engine)

        technique = SimpleNamespace(
            space={"engine": ("package", "jit", "cudagraphs"), "freezing": (True, False)},
            options=SimpleNamespace,
            check=check,
            favours=TABLE["inductor"].favours,
        )
        subject = SimpleNamespace(device_type=device)
        return options_that_apply(technique, subject, None)[0]  # type: ignore[arg-type]

    assert options("cuda", True) == {"engine": ["cudagraphs", "package", "jit"], "freezing": [True, False]}
    assert options("cuda", False) == {"engine": ["package"], "freezing": [True, False]}
    assert options("cpu", True) == {"engine": ["package", "jit", "cudagraphs"], "freezing": [True, False]}


def test_a_crash_is_a_failed_trial_and_the_search_goes_on(tmp_path: Path) -> None:
    records = run(tmp_path, FakeRunner(crash=frozenset({"openvino"})))
    failed = [r for r in records if r.status == "failed"]
    assert failed
    assert all("SIGKILL" in r.reason for r in failed)
    assert ranked(Goal(), records)


def test_a_resumed_search_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", FakeRunner(), max_trials=25)
    (tmp_path / "parts").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", FakeRunner(interrupt_at=4), max_trials=25)
    halfway = Study.open(default_storage(tmp_path / "parts"), "test").records()
    assert labels(halfway) == labels(whole)[:4]
    resumed = run(tmp_path / "parts", FakeRunner(), max_trials=25)
    assert labels(resumed) == labels(whole)
    assert [r.speedup for r in resumed] == [r.speedup for r in whole]


def test_only_the_best_artefacts_stay_on_disk(tmp_path: Path) -> None:
    records = run(tmp_path, FakeRunner())
    kept = {int(p.parent.name.removeprefix("trial-")) for p in tmp_path.glob("trial-*/artefact")}
    assert kept == {r.number for r in ranked(Goal(), records)[:3]}


@pytest.mark.parametrize(("stop_at", "num_trials"), [(30.0, 1), (1.0, 0)])
def test_the_first_trial_is_begun_past_the_deadline_if_it_may_run_at_all(
    tmp_path: Path, stop_at: float, num_trials: int
) -> None:
    study = Study.open(default_storage(tmp_path), "test")
    limit = SearchTime(-1.0, stop_at, clock=lambda: 0.0)
    records = search(context(tmp_path, FakeRunner()), study, Goal(), limit)
    assert len(records) == num_trials


def test_no_trial_takes_the_time_that_is_kept_for_a_proof(tmp_path: Path) -> None:
    study = Study.open(default_storage(tmp_path), "test")
    asked = list[int]()

    def kept_s(records: Sequence[TrialRecord]) -> float:
        asked.append(len(records))
        return 100.0 if len(records) > 1 else 0.0

    limit = SearchTime(50.0, 1e9, clock=lambda: 0.0, kept_s=kept_s)
    records = search(context(tmp_path, FakeRunner()), study, Goal(), limit)
    assert len(records) == 2
    assert max(asked) == 2


def test_parameters_and_recipes_are_each_others_inverse() -> None:
    space = Space(techniques())
    recipe = complete(space, [Step(technique="int8_static"), Step(technique="inductor"), Step(technique="fuse_qkv")])
    values = space.parameters(recipe)
    assert str(space.recipe(lambda name, choices: values[name])) == str(recipe)


def test_a_damaged_study_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StudyError, match=r"cannot be used .*; remove it to start anew"):
        Study.open(default_storage(tmp_path), "test")


@pytest.mark.parametrize("storage", ["nonsense", "postgresql+nodriver://127.0.0.1:9/whet"])
def test_a_storage_out_of_reach_is_named(storage: str) -> None:
    with pytest.raises(StudyError, match=r"cannot be used .*; the URL must be .* its driver installed"):
        Study.open(storage, "test")


def test_a_storage_that_fails_in_mid_search_is_named(tmp_path: Path) -> None:
    study = Study.open(default_storage(tmp_path), "test")
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("DROP TABLE trials")
    for use in (study.records, lambda: study.begin(None, Space(techniques()))):
        with pytest.raises(StudyError, match=r"study.db cannot be used \(.*no such table"):
            use()


def test_a_record_that_is_none_is_named(tmp_path: Path) -> None:
    study = Study.open(default_storage(tmp_path), "test")
    number, _ = study.begin(complete(Space(techniques()), [Step(technique="bf16")]), Space(techniques()))
    study._open[number].set_user_attr("record", '{"number": "no number"}')
    with pytest.raises(StudyError, match=r"cannot be used .*; remove it to start anew"):
        study.records()


def test_what_a_storage_says_keeps_its_password(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="cannot be used") as raised:
        Study.open("postgresql+nodriver://me:secret@127.0.0.1:9/whet", "test")
    assert "secret" not in str(raised.value)
    with pytest.raises(StudyError, match="must be writable"):
        Study.open(f"sqlite:///{tmp_path}/none/study.db", "test")


def test_an_error_without_words_is_named_by_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("optuna.create_study", fail)
    with pytest.raises(StudyError, match=r"cannot be used \(AssertionError\)"):
        Study.open(default_storage(tmp_path), "test")


def test_nothing_to_resume_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="leave out --resume"):
        Study.open(default_storage(tmp_path), "test", must_exist=True)


@pytest.mark.parametrize(("attribute", "value"), [("pid", 2**22 + 1), ("began", 1e9)])
def test_a_trial_whose_process_is_gone_is_tried_again(tmp_path: Path, attribute: str, value: float) -> None:
    """Its number may be another process's by now, as after a container was started again."""
    space = Space(techniques())
    study = Study.open(default_storage(tmp_path), "test")
    _, recipe = study.begin(complete(space, [Step(technique="fuse_qkv")]), space)
    assert labels(study.records()) == [str(recipe)], "it runs: nobody else takes it"
    set_attribute(study, attribute, value)
    assert study.records() == []


def test_a_search_does_not_wait_for_a_trial_of_a_computer_that_it_cannot_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waited(seconds: float) -> None:
        raise AssertionError("it waits")

    study, space = Study.open(default_storage(tmp_path), "test"), [applicable("fuse_qkv", bounds=[3.0])]
    study.begin(complete(Space(space), [Step(technique="fuse_qkv")]), Space(space))
    monkeypatch.setattr("whet.tuner.search.time.sleep", waited)
    with pytest.raises(AssertionError, match="it waits"):
        search(context(tmp_path, FakeRunner(), applicable=space), study, Goal(), FOREVER, samples=False)
    set_attribute(study, "host", "a container that is no more")
    found = search(context(tmp_path, FakeRunner(), applicable=space), study, Goal(), FOREVER, samples=False)
    assert [record.status for record in found] == ["running"]


def set_attribute(study: Study, name: str, value: Any) -> None:
    """Change what a study's first trial says of its process."""
    trial = study._study.get_trials(deepcopy=False)[0]
    study._study._storage.set_trial_user_attr(trial._trial_id, name, value)


def test_an_empty_recipe_reads_as_the_original() -> None:
    assert str(Recipe()) == "original"


def test_several_may_begin_a_shared_search_at_the_same_moment(tmp_path: Path) -> None:
    storage, together = f"sqlite:///{tmp_path / 'shared.db'}", threading.Barrier(6)

    def begin(_: int) -> Study:
        together.wait()
        return Study.open(storage, "shared")

    with ThreadPoolExecutor(6) as pool:
        assert len(list(pool.map(begin, range(6)))) == 6
    assert Study.open(storage, "shared", must_exist=True).records() == []


def test_a_trial_that_was_disturbed_is_measured_again_and_else_left_for_later(tmp_path: Path) -> None:
    runner = FakeRunner()
    busy_calls = {0, 2, 3, 4}

    def run_busily(function: Function, request: TrialRequest, directory: Path, time_limit_s: float) -> Outcome:
        number = len(runner.calls)
        outcome = runner(function, request, directory, time_limit_s)
        shutil.rmtree(request.directory)  # the fake makes it anew
        if outcome.value is not None and number in busy_calls:
            outcome.value["busy"] = "others had a core"
        return outcome

    looks: list[float] = []

    def glance(seconds: float) -> tuple[Load, str]:
        looks.append(seconds)
        return Load(seconds, 2, foreign_s=0.0 if len(looks) == 1 else 2 * seconds), ""

    study = Study.open(default_storage(tmp_path), "test")
    patience = QuietWait("wait", 60.0, glance=glance, clock=lambda: 100.0 * len(looks))
    found = search(context(tmp_path, run_busily), study, Goal(), FOREVER, patience=patience)  # type: ignore[arg-type]
    # The first is measured again after a quiet look. Then the machine stays busy: three in a row end the search.
    assert [record.busy for record in found] == [""]
    assert patience.has_run_out
    assert len(runner.calls) == 5
    busy_calls.clear()
    study = Study.open(default_storage(tmp_path), "test", must_exist=True)
    again = search(context(tmp_path, run_busily), study, Goal(), FOREVER, max_trials=3)  # type: ignore[arg-type]
    assert labels(again)[:2] == [labels(found)[0], str(complete(Space(techniques()), runner.calls[2]))]


def test_what_earlier_studies_say_of_techniques_is_read() -> None:
    """They held bounds and shrinks by the printed form of each step."""
    old = {
        "technique": "openvino", "detail": "", "groups": ["backend"], "options": {"precision": ["int8", "bf16"]},
        "bounds": {"openvino(precision=int8)": 9.0, "openvino(precision=bf16)": 5.0},
        "shrinks": {"openvino(precision=int8)": 4.0},
    }  # fmt: skip
    found = ApplicableTechnique.model_validate(old)
    assert [(str(v.step), v.bound, v.shrink) for v in found.variants] == [
        ("openvino(precision=int8)", 9.0, 4.0),
        ("openvino(precision=bf16)", 5.0, 1.0),
    ]
    assert ApplicableTechnique.model_validate_json(found.model_dump_json()) == found
    assert found.most == 9.0


@pytest.mark.parametrize(
    ("found", "cause"),
    [({"drop": 0.2}, "quality"), ({"drop": 0.0, "peak_bytes": 2**30}, "memory"), ({"drop": None}, "outputs")],
)
def test_what_earlier_records_were_rejected_for_is_inferred(found: dict[str, object], cause: str) -> None:
    record = {"number": 0, "steps": [], "status": "rejected", **found}
    assert TrialRecord.model_validate(record).rejected_for == cause
    assert TrialRecord.model_validate({**record, "rejected_for": "quality"}).rejected_for == "quality"
    assert TrialRecord.model_validate({**record, "status": "done"}).rejected_for is None


def test_a_compiler_is_run_only_where_it_ends_before_the_deadline() -> None:
    clock = iter([10.0, 10.0, 80.0]).__next__
    limit = SearchTime(deadline=100.0, stop_at=120.0, trial_s=20.0, clock=clock, compile_s=30.0)
    assert limit.allows_compiler([])
    assert limit.allows_compiler([TrialRecord(number=0, steps=[], status="done", seconds=40.0)])
    assert not limit.allows_compiler([])


def test_the_next_trial_is_expected_to_take_as_long_as_the_longest_of_the_last_of_its_kind() -> None:
    def trial(technique: str, seconds: float) -> TrialRecord:
        return TrialRecord(number=0, steps=[Step(technique=technique)], status="done", seconds=seconds)

    limit = SearchTime(
        100.0, 120.0, 20.0, lambda: 0.0, compile_s=30.0, compiled=lambda r: r.steps[0].technique == "inductor"
    )
    assert (limit.expected_s([]), limit.compiling_s([])) == (20.0, 30.0)
    compiled = trial("inductor", 70.0)
    assert (limit.expected_s([compiled]), limit.compiling_s([compiled])) == (20.0, 50.0)
    known = [compiled, trial("bf16", 90.0), *(trial("bf16", seconds) for seconds in (12.0, 15.0, 10.0, 9.0, 8.0))]
    assert (limit.expected_s(known), limit.compiling_s(known)) == (15.0, 55.0)
    assert limit.compiling_s([trial("bf16", 10.0), trial("inductor", 5.0)]) == 0.0


def test_the_sampler_leaves_compilers_out_too(tmp_path: Path) -> None:
    """The plan has ended; what is left for the sampler would run until the time for the finals is gone."""
    trials = context(tmp_path, FakeRunner(), applicable=[applicable("inductor", "backend", bounds=[2.0])])
    study = Study.open(default_storage(tmp_path), "test")
    far = 1e6
    limit = SearchTime(deadline=far, stop_at=far, trial_s=1.0, clock=lambda: 0.0, compile_s=2 * far)
    done = search(trials, study, Goal(), limit, max_trials=3, propose=lambda **_: None)
    assert done == []
