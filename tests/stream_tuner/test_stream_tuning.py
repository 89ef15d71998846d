"""A stream is tuned from end to end, and what is written is a stream again."""

import json
import math

import pytest
import torch
from stream_fakes import made_report, spread
from whet.stream_tuner.outcome import by_budget, by_speed
from whet.stream_tuner.result import Point
from written_unets import write_unet

import whet
from whet.artefact import load, read_manifest
from whet.comparison.claim import Claim, Verdict
from whet.models.diffusion.unet import UNetConfig
from whet.stream_tuner import tuning
from whet.stream_tuner.clips import Clip, Clips
from whet.stream_tuner.denoiser import JudgedStream, capture, shapes_taken
from whet.stream_tuner.goal import StreamGoal
from whet.stream_tuner.quality import Change, Figures
from whet.streamer.replaced import Replacements
from whet.streamer.report import StreamReport
from whet.streamer.sources.synthetic import SyntheticClip
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import open_target
from whet.technique import Candidate
from whet.tuner.batch import with_free_batch
from whet.workload import examine

CONFIG = UNetConfig(frame_size=16, grey_size=8, widths=(8, 8), embedding=16)
FIGURES = Figures(30.0, 0.9, 1.0, 0.0, 0.0, ssim_by_frame=(0.9, 0.91))
COMMON = {"target": "t", "source": "synthetic", "max_drop": 0.01}
SAME = Change(0.0, (0.0, 0.0), ())


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


def claim(verdict: Verdict, ratio: float = 2.0) -> Claim:
    return Claim(
        verdict=verdict, ratio=ratio, ci95=(ratio * 0.95, ratio * 1.05), p_value=0.01, old_s=(0.8,), new_s=(0.4,)
    )


@pytest.mark.parametrize(
    ("found", "moved", "verdict", "said"),
    [
        (claim(Verdict.PASS), SAME, "gain", "2.00x"),
        (claim(Verdict.PASS), Change(0.1, (0.0, 0.2), ("it is blurred",)), "no-gain", "it is blurred"),
        (claim(Verdict.FAIL, 0.9), SAME, "no-gain", "no gain"),
        (claim(Verdict.INCONCLUSIVE), SAME, "inconclusive", "open"),
        (None, SAME, "no-gain", "Nothing that was tried"),
        (Claim(verdict=Verdict.INCONCLUSIVE, failure="it crashed"), SAME, "failed", "it crashed"),
    ],
)
def test_a_gain_needs_a_proof_of_the_speed_and_the_same_quality(found, moved, verdict, said):
    original, best = Point(label="original", figures=FIGURES), Point(label="best", figures=FIGURES)
    result = by_speed(original, best, found, moved, None, COMMON)
    assert result.verdict == verdict and said in result.sentence
    assert result.best.label == ("best" if verdict == "gain" else "original")
    if verdict == "gain":
        assert result.best.fps == pytest.approx(20)  # a call is 8 frames


def report(p99: float, *, busy: str = "", late: float = 0.0) -> StreamReport:
    times = spread(p99, p99 / 2)
    return made_report(frame=times, model=times, budget_s=0.04, late_share=late, busy=busy)


BETTER = Figures(31.0, 0.95, 1.0, 0.0, 0.0, ssim_by_frame=(0.95, 0.96))


@pytest.mark.parametrize(
    ("runs", "figures", "verdict", "said"),
    [
        ((report(0.05), report(0.03)), FIGURES, "gain", "the original misses it"),
        ((report(0.03), report(0.03)), BETTER, "gain", "keeps it too"),
        ((report(0.03), report(0.03)), FIGURES, "no-gain", "no better"),
        ((report(0.05), report(0.05)), BETTER, "no-gain", "misses the budget"),
        ((report(0.03), report(0.03, late=0.01)), BETTER, "no-gain", "misses the budget"),
        ((report(0.03), report(0.03, busy="cc1plus")), BETTER, "inconclusive", "cc1plus"),
    ],
)
def test_a_budget_has_to_be_held(runs, figures, verdict, said):
    original, best = Point(label="original", figures=FIGURES), Point(label="best", figures=figures)
    result = by_budget(original, best, None, runs, 0.04, COMMON)
    assert result.verdict == verdict and said in result.sentence, result.sentence


@pytest.fixture
def without_processes(monkeypatch):
    """Leave out the search of the model's recipe, and have the comparison find twice the speed."""
    monkeypatch.setattr(tuning, "capture", lambda *args: [])
    monkeypatch.setattr(tuning, "compared", lambda *args, **kwargs: [claim(Verdict.PASS)])


def test_what_is_written_streams_again(unet, tmp_path, without_processes):
    # With the truth being what one step makes, one step is the best, and four are worse.
    frames = clip().frames
    one = StreamOptions(steps=1, sampler="lcm")
    truth = list(whet_answers(unet, frames, one))
    clips = Clips([Clip(frames, truth)], [Clip(frames, truth)])
    goal = StreamGoal(budget_s=600.0, max_drop=0.0)
    result = tuning.tune_stream(
        str(unet), "synthetic:20", StreamOptions(steps=3), goal, clips=clips, out=tmp_path / "out"
    )
    assert result.verdict == "gain" and result.has_truth
    assert result.best.label.startswith("1 step of lcm")
    assert result.best.figures.ssim == 1.0 and result.original.figures.ssim < 1.0
    read = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert read["kind"] == "stream" and read["best"]["figures"]["ssim"] == 1.0 and len(read["trials"]) > 3
    assert all(math.isfinite(value) for value in read["best"]["speedup_ci95"])
    answers = list(whet_answers(tmp_path / "out", frames, StreamOptions()))
    assert all((a == b).all() for a, b in zip(answers, truth, strict=True))


def whet_answers(target, frames, options):
    from whet.streamer.sources.memory import MemoryClip

    with Stream(str(target), lambda size: MemoryClip("clip", frames), options) as stream:
        for answer in stream:
            yield answer.image


def test_without_a_gain_the_stream_that_is_written_is_the_original(unet, tmp_path, without_processes, monkeypatch):
    monkeypatch.setattr(tuning, "compared", lambda *args, **kwargs: [claim(Verdict.FAIL, 0.9)])
    options = StreamOptions(steps=2)
    result = tuning.tune_stream(str(unet), "synthetic:20", options, out=tmp_path / "out")
    assert result.verdict == "no-gain" and not result.has_truth
    frames = clip().frames
    pairs = zip(
        whet_answers(tmp_path / "out", frames, StreamOptions()), whet_answers(unet, frames, options), strict=True
    )
    assert all((a == b).all() for a, b in pairs)


def test_a_tuned_stream_is_not_tuned_again(unet, tmp_path, without_processes):
    tuning.tune_stream(str(unet), "synthetic:20", StreamOptions(steps=1), out=tmp_path / "out")
    with pytest.raises(whet.WhetError, match=r"is a tuned stream already; tune .*unet"):
        tuning.tune_stream(str(tmp_path / "out"))


@pytest.mark.parametrize(("rolling", "budget_s"), [(False, 600.0), (True, 600.0), (True, 1e-3)])
def test_where_unseen_frames_are_worse_the_models_go_on_with_the_original_steps(
    unet, tmp_path, monkeypatch, rolling, budget_s
):
    # On the frames to choose on, one step is right. On the others, what the original makes is.
    frames = clip().frames
    options = StreamOptions(steps=2, rolling=rolling)
    one, two = (list(whet_answers(unet, frames, given)) for given in (StreamOptions(steps=1), options))
    clips = Clips([Clip(frames, one)], [Clip(frames, two)])
    module = open_target(str(unet), StreamOptions()).model.step.call_modules["U-Net"]
    monkeypatch.setattr(tuning._Run, "_claim", lambda *args: claim(Verdict.PASS))
    monkeypatch.setattr(tuning.search, "choose_batch", lambda bench, start: start)
    monkeypatch.setattr(tuning.search, "choose_fastest", lambda bench, start, *args: start.changed(steps=1))
    searches = []

    def tuned_models(self, bench, setting, out, budget_s, max_drop):
        rows = setting.options.steps if setting.options.rolling and out.name == "again" else 1
        bench.models["U-Net"] = (module, (("0", (rows, 3, 16, 16)),))
        searches.append((out.name, budget_s, max_drop))
        return []

    monkeypatch.setattr(tuning._Run, "_tuned_models", tuned_models)
    goal = StreamGoal(budget_s=budget_s)
    result = tuning.tune_stream(str(unet), "synthetic:20", options, goal, clips=clips, out=tmp_path / "out")
    assert any("is not as good" in note for note in result.notes), result.notes
    if budget_s < 1:  # the batch is not tuned, and two calls a frame are other sums than the batch's
        assert any("no time is left to tune the models again" in note for note in result.notes)
        assert [name for name, *_ in searches] == ["searches"]
        return
    assert [name for name, *_ in searches] == (["searches", "again"] if rolling else ["searches"])
    assert all(0 < given <= 600 for _, given, _ in searches)
    assert searches[-1][2] == (0.001 if rolling else 0.01)  # a second search allows less error
    how = "rolling batch" if rolling else "one by one"
    assert result.verdict == "gain" and result.best.label.startswith(f"2 steps of lcm, {how}")
    assert result.best.figures.ssim == 1.0


def test_nothing_is_left_of_a_search_that_came_to_nothing(unet, tmp_path, without_processes):
    goal = StreamGoal(frame_budget_s=1e-6)
    with pytest.raises(whet.WhetError, match="no setting keeps the budget"):
        tuning.tune_stream(str(unet), "synthetic:20", StreamOptions(steps=1), goal, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_model_inside_is_tuned_and_the_whole_proved(unet, tmp_path):
    """Nothing is faked. The verdict depends on the machine; what is written must stream in any case."""
    goal = StreamGoal(budget_s=240.0, on_busy="go-on")
    result = tuning.tune_stream(str(unet), "synthetic:60", StreamOptions(steps=2), goal, out=tmp_path / "out")
    assert result.verdict in ("gain", "no-gain", "inconclusive"), result.sentence
    assert any(note.startswith("U-Net: ") for note in result.notes), result.notes
    frames = clip(12).frames
    answers = list(whet_answers(tmp_path / "out", frames, StreamOptions()))
    assert len(answers) == 12 and answers[0].shape == (16, 16, 3)
    assert torch.tensor(answers[-1]).float().std() > 0
