"""A stream is tuned from end to end, and what is written is a stream again."""

import json

import fake_kind
import pytest
import torch
from stream_fakes import made_report, spread
from written_unets import write_unet

import whet
from whet.core.artefact import load, read_manifest
from whet.core.recipe import Recipe
from whet.core.workload import examine
from whet.models.diffusion.unet import UNetConfig
from whet.streamer.module_swaps import Replacements
from whet.streamer.report import StreamReport
from whet.streamer.sources.synthetic import SyntheticClip
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import open_target
from whet.techniques.technique import Candidate
from whet.tuner import finals
from whet.tuner.asked import Asked
from whet.tuner.batch import with_free_batch
from whet.tuner.finals import Finals
from whet.tuner.goal import Goal
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.streams.clips import Clip, Clips
from whet.tuner.streams.goal import StreamGoal
from whet.tuner.streams.kind import StreamKind
from whet.tuner.streams.quality import Change, Figures
from whet.tuner.streams.submodels import JudgedStream, capture, shapes_taken
from whet.tuner.streams.techniques import step
from whet.tuner.streams.tuning import tune_stream
from whet.tuner.verdict import decide

CONFIG = UNetConfig(frame_size=16, grey_size=8, widths=(8, 8), embedding=16)


@pytest.fixture(scope="module")
def unet(tmp_path_factory):
    return write_unet(tmp_path_factory.mktemp("unet") / "unet", CONFIG)


def clip(count: int = 6) -> Clip:
    frames = [frame.image for frame in SyntheticClip(count, size=(16, 16))]
    return Clip(frames, frames)


def test_the_calls_of_the_models_inside_are_captured(unet):
    options = StreamOptions(steps=3, rolling=True)
    opened = open_target(str(unet), options)
    replacements = Replacements(opened.model.step)
    (found,) = capture(opened, replacements, [clip(12)], options)
    assert found.name == "U-Net"
    assert dict(found.shapes)["0"] == (3, 3, 16, 16)  # of a full batch, not of one that fills
    for args, named in found.inputs:
        assert not named and not any(x.is_inference() for x in args)
        assert sorted(args[1].tolist()) == sorted(set(args[1].tolist()))  # each row is at a step of its own
        assert found.module(*args).shape == (3, 3, 16, 16)


def test_a_variant_is_judged_by_the_whole_stream(unet):
    options = StreamOptions(steps=1)
    opened = open_target(str(unet), options)
    (found,) = capture(opened, Replacements(opened.model.step), [clip()], options)
    score = JudgedStream(open_target(str(unet), options), options, [clip()]).scorer(found)
    own = score(found.module)
    assert own == score(found.module)  # nothing is left of the variant before
    half = score(lambda *args: found.module(*args) / 2)
    assert half != own and len(half) == len(own) == 6


def test_an_artefact_takes_any_batch_where_it_was_saved_so(unet, tmp_path):
    options = StreamOptions(steps=1)
    opened = open_target(str(unet), options)
    (found,) = capture(opened, Replacements(opened.model.step), [clip()], options)
    (args, _) = found.inputs[0]
    examined, _ = with_free_batch(examine(whet.Workload(model=found.module, inputs=[args])))
    Candidate.original(examined).save(tmp_path / "free")
    taken = dict(shapes_taken(found.shapes, read_manifest(tmp_path / "free")))
    assert taken["0"] == (None, 3, 16, 16) and taken["1"] == (None,)
    assert load(tmp_path / "free")(*(x.repeat(3, *[1] * (x.dim() - 1)) for x in args)).shape == (3, 3, 16, 16)
    Candidate.original(examine(whet.Workload(model=found.module, inputs=[args]))).save(tmp_path / "fixed")
    assert shapes_taken(found.shapes, read_manifest(tmp_path / "fixed")) == found.shapes


def whet_answers(target, frames, options):
    from whet.streamer.sources.memory import MemoryClip

    with Stream(str(target), lambda size: MemoryClip("clip", frames), options) as stream:
        for answer in stream:
            yield answer.image


@pytest.fixture
def quick(monkeypatch, short_children):
    """Leave out the models' own searches, and let two rounds of forks be the finals."""
    monkeypatch.setattr("whet.tuner.streams.models.capture", lambda *args: [])
    monkeypatch.setattr(finals, "ROUNDS", 2)
    monkeypatch.setattr(finals, "MIN_ROUNDS", 2)


def tuned(unet, out, options: StreamOptions, clips: Clips | None = None, **goal) -> Result:
    goal = StreamGoal(**{"budget_s": 600.0, "on_busy": "go-on", **goal})
    return tune_stream(str(unet), "synthetic:20", options, goal, clips=clips, out=out)


def test_what_is_written_streams_again(unet, tmp_path, quick):
    # With the truth being what one step makes, one step is the best, and three are worse.
    frames = clip().frames
    one = StreamOptions(steps=1, sampler="lcm")
    truth = list(whet_answers(unet, frames, one))
    clips = Clips([Clip(frames, truth)], [Clip(frames, truth)])
    out = tmp_path / "out"
    result = tuned(unet, out, StreamOptions(steps=3), clips, max_drop=0.0)
    assert (result.kind, result.source, result.hints) == ("stream", "synthetic:20", [])
    (found,) = result.finalists
    assert step("sampling", steps=1, sampler="lcm") in found.steps
    assert found.throughput_per_s == pytest.approx(1e3 / found.latency_ms)
    read = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert read["kind"] == "stream" and len(read["trials"]) > 3
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "most frames of the same quality" in page and "sampling" in page
    kept = one if result.verdict == "gain" else StreamOptions(steps=3)
    answers = list(whet_answers(out, frames, StreamOptions()))
    assert all((a == b).all() for a, b in zip(answers, whet_answers(unet, frames, kept), strict=True))
    assert Recipe.read(out).kind == "stream"
    with pytest.raises(whet.WhetError, match="this recipe is for a stream"):
        Recipe(kind="stream", steps=found.steps).checked_for("inference")


def test_where_nothing_is_faster_the_stream_that_is_written_is_the_original(unet, tmp_path, quick, monkeypatch):
    monkeypatch.setattr("whet.tuner.streams.facts._threads", tuple)
    options = StreamOptions(steps=1)
    result = tuned(unet, tmp_path / "out", options)
    assert result.best.steps == () and "the true answers are not known" in result.hints[0]
    frames = clip().frames
    pairs = zip(
        whet_answers(tmp_path / "out", frames, StreamOptions()), whet_answers(unet, frames, options), strict=True
    )
    assert all((a == b).all() for a, b in pairs)
    with pytest.raises(whet.WhetError, match=r"is a tuned stream already; tune .*unet"):
        tune_stream(str(tmp_path / "out"))


def kind(unet, tmp_path, within_s: float | None = None) -> StreamKind:
    """A kind after its examination, whose models are never tuned."""
    asked = Asked(Goal(max_drop=0.01), 600.0)
    made = StreamKind(asked, str(unet), "synthetic:20", StreamOptions(steps=2), within_s=within_s)
    made.work = fake_kind.work(budget_s=600.0)
    made._scratch = tmp_path
    made.examine()
    made._own_s = 0.02
    made.begin_search(tmp_path, [])
    return made


SAME = Change(0.0, (0.0, 0.0), ())
FIGURES = Figures(psnr_db=30.0, ssim=0.9, sharpness=1.0, flicker=0.0, warp_error=0.0, ssim_by_frame=(0.9, 0.91))
BETTER = Figures(psnr_db=31.0, ssim=0.95, sharpness=1.0, flicker=0.0, warp_error=0.0, ssim_by_frame=(0.95, 0.96))
FEWER = (step("sampling", steps=1, sampler="lcm"),)


def point(label: str = "best", **known) -> MeasuredVariant:
    fields = {"latency_ms": 10.0, "throughput_per_s": 100.0, "peak_bytes": 0, "size_bytes": 0, "quality": 0.9}
    return MeasuredVariant(**{**fields, "label": label, "steps": FEWER if label != "original" else (), **known})


DONE = TrialRecord(number=1, steps=FEWER, status="done", speedup=2.0, quality=0.9)


@pytest.mark.parametrize(
    ("moved", "word", "said"),
    [
        (SAME, "gain", "best: 2.00x (1.90–2.10)"),
        (Change(0.1, (0.0, 0.2), ("it is blurred",)), "no-gain", "on unseen clips it is blurred"),
    ],
)
def test_a_gain_needs_the_same_quality_on_unseen_frames(unet, tmp_path, moved, word, said):
    made = kind(unet, tmp_path)
    fast = point(speedup=2.0, speedup_ci95=(1.9, 2.1), verdict="pass", number=1)
    made.unseen.moved["best"] = moved
    found = decide(made, Finals(point("original"), [fast], (), 1), [DONE])
    assert found.word == word and said in found.sentence, found.sentence


def report(p99: float, *, busy: str = "", late: float = 0.0) -> StreamReport:
    times = spread(p99, p99 / 2)
    return made_report(frame=times, model=times, budget_s=0.04, late_share=late, busy=busy)


@pytest.mark.parametrize(
    ("runs", "figures", "word", "said"),
    [
        ((report(0.05), report(0.03)), FIGURES, "gain", "the original misses it"),
        ((report(0.03), report(0.03)), BETTER, "gain", "keeps it too"),
        ((report(0.03), report(0.03)), FIGURES, "no-gain", "no better"),
        ((report(0.05), report(0.05)), BETTER, "no-gain", "misses 40.0 ms a frame: P99 50.0 ms"),
        ((report(0.03), report(0.03, late=0.01)), BETTER, "no-gain", "1.0% late"),
        ((report(0.03), report(0.03, busy="cc1plus")), BETTER, "inconclusive", "cc1plus"),
    ],
)
def test_a_budget_has_to_be_held(unet, tmp_path, monkeypatch, runs, figures, word, said):
    made = kind(unet, tmp_path, within_s=0.04)
    made.unseen._own, made.unseen.figures["best"], made.unseen.moved["best"] = FIGURES, figures, SAME
    asked = iter(runs)
    monkeypatch.setattr("whet.tuner.streams.unseen.budget_run", lambda *args: next(asked))
    original, best = point("original"), point(quality=figures.ssim, verdict="pass", number=1)
    made.unseen.keep_time(best, original)
    found = decide(made, Finals(original, [best], (), 1), [DONE])
    assert found.word == word and said in found.sentence, found.sentence


def test_where_unseen_frames_are_worse_nothing_is_kept(unet, tmp_path, quick, monkeypatch):
    # On the frames to choose on, one step is right. On the others, what the original makes is.
    frames = clip().frames
    one, two = (list(whet_answers(unet, frames, StreamOptions(steps=n, rolling=False))) for n in (1, 2))
    clips = Clips([Clip(frames, one)], [Clip(frames, two)])
    monkeypatch.setattr(StreamKind, "improves", lambda self, point, baseline: True)
    monkeypatch.setattr("whet.tuner.streams.facts._threads", tuple)
    result = tuned(unet, tmp_path / "out", StreamOptions(steps=2, rolling=False), clips)
    assert (result.verdict, result.best.steps) == ("no-gain", ())
    assert "but on unseen clips the structural similarity drops" in result.sentence


def test_the_streams_own_steps_are_compared_where_fewer_are_worse_on_unseen_frames(unet, tmp_path, monkeypatch):
    made, asked = kind(unet, tmp_path), []

    def attempt(number, recipe, left_s):
        asked.append(recipe.steps)
        return TrialRecord(number=number, steps=recipe.steps, status="done", speedup=1.5)

    monkeypatch.setattr(made, "attempt", attempt)
    models = step("tuned_models")
    best = TrialRecord(number=3, steps=(*FEWER, models), status="done", speedup=2.0)
    others = made.instead([best], [best])
    assert asked == [(models,), (step("tuned_models", drop="tenth"),)]
    assert [record.number for record in others] == [4, 5]
    made.work = fake_kind.work(budget_s=600.0, clock=iter([0.0, *[560.0] * 9]).__next__)
    assert made.instead([best], [best]) == [], "no time is left for another search"


def test_a_stream_that_cannot_run_leaves_nothing_behind(unet, tmp_path):
    with pytest.raises(whet.WhetError, match="steps"):
        tuned(unet, tmp_path / "out", StreamOptions(steps=60))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_model_inside_is_tuned_and_the_whole_proved(unet, tmp_path):
    """Nothing is faked. The verdict depends on the machine; what is written must stream in any case."""
    goal = StreamGoal(budget_s=240.0, on_busy="go-on")
    result = tune_stream(str(unet), "synthetic:60", StreamOptions(steps=2), goal, out=tmp_path / "out")
    assert result.verdict in ("gain", "no-gain", "inconclusive"), result.sentence
    assert any(note.startswith("U-Net: ") for trial in result.trials for note in trial.notes)
    frames = clip(12).frames
    answers = list(whet_answers(tmp_path / "out", frames, StreamOptions()))
    assert len(answers) == 12 and answers[0].shape == (16, 16, 3)
    assert torch.tensor(answers[-1]).float().std() > 0
