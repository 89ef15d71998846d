"""whet.Engine ends: closed, dropped, drained; and what a model or the engine itself does to it when it fails."""

import gc
import logging
import threading

import pytest
from gated_model import GREEDY, LONG, GatedModel, eventually, is_idle
from hash_model import HashModel
from naive import naive_output

from whet.errors import EngineClosed
from whet.server.completion import join
from whet.server.engine import Engine
from whet.server.options import EngineOptions


def test_close_ends_what_runs_and_waits() -> None:
    model = GatedModel()
    engine = Engine(model, EngineOptions(max_num_seqs=1))
    streams = [engine.stream([i], LONG) for i in range(3)]
    assert model.is_waiting.wait(10)
    threading.Timer(0.05, model.gate.set).start()
    engine.close()
    assert [join(stream).finish_reason for stream in streams] == ["abort"] * 3
    assert not engine.is_open
    with pytest.raises(EngineClosed):
        engine.generate([1])
    with pytest.raises(EngineClosed):
        engine.reserve()
    engine.close()


def test_an_engine_that_is_dropped_ends_its_thread() -> None:
    def num_threads() -> int:
        return sum(thread.name == "whet-engine" for thread in threading.enumerate())

    before = num_threads()
    engine = Engine(HashModel())
    engine.generate([1], GREEDY)
    assert num_threads() == before + 1
    del engine
    gc.collect()
    assert eventually(lambda: num_threads() == before)


def test_drain() -> None:
    model = GatedModel()
    with Engine(model, EngineOptions(max_num_seqs=1)) as engine:
        streams = [engine.stream([i], GREEDY) for i in range(3)]
        drain = threading.Thread(target=engine.drain, args=(20,))
        drain.start()
        assert eventually(lambda: not engine.is_open)
        with pytest.raises(EngineClosed, match="shutting down"):
            engine.submit([1], GREEDY, on_delta=print)
        model.gate.set()
        drain.join(20)
        assert [join(stream).finish_reason for stream in streams] == ["length"] * 3


def test_drain_aborts_what_takes_too_long() -> None:
    model = GatedModel()
    with Engine(model, EngineOptions(max_num_seqs=1)) as engine:
        streams = [engine.stream([i], LONG) for i in range(2)]
        threading.Timer(0.1, model.gate.set).start()
        engine.drain(0.01)
        assert [join(stream).finish_reason for stream in streams] == ["abort"] * 2


def test_a_model_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), Engine(HashModel(fail_at=[3])) as engine:
        done = engine.generate([1, 2], GREEDY)
        assert (done.finish_reason, done.error) == ("error", "the step failed: RuntimeError: the model broke")
        assert len(done.token_ids) == 2
        assert engine.generate([1, 2], GREEDY).token_ids == naive_output(HashModel().logits_after, [1, 2], GREEDY)
        assert engine.stats().request_success == {"stop": 0, "length": 1, "abort": 0, "error": 1}


def test_a_failure_of_the_engine_itself(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GatedModel()
    with caplog.at_level(logging.CRITICAL), Engine(model, EngineOptions(max_num_seqs=2)) as engine:
        streams = [engine.stream([i], LONG) for i in range(4)]
        assert model.is_waiting.wait(10)
        blocks = engine._loop.stepper.scheduler.blocks
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "publish", lambda request: blocks.no_such_thing)
            patch.setattr(blocks, "release", lambda request: blocks.no_such_thing)
            model.gate.set()
            done = [join(stream) for stream in streams]
        assert [one.finish_reason for one in done] == ["error"] * 4
        assert "the engine failed: AttributeError" in (done[0].error or "")
        assert engine.generate([1, 2], GREEDY).token_ids == naive_output(HashModel().logits_after, [1, 2], GREEDY)
        assert is_idle(engine)
