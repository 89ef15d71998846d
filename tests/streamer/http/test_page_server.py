"""The websocket by a real client: frames and answers, changes while it runs, who is let in, and who goes away."""

import http.client
import io
import json
import socket
import threading
import time

import numpy as np
import PIL.Image
import pytest
from page_servers import SIZE, Negative, Viewer, guided, serving
from stream_fakes import Delayed
from websockets.exceptions import ConnectionClosed, InvalidStatus

from whet.models.diffusion.guidance import Guidance
from whet.streamer.http import server as server_module
from whet.streamer.http.viewers import BUSY, ENDED, GOING, MISUNDERSTOOD, NO_KEY
from whet.streamer.stream import StreamOptions


def wait_until(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def hold(step, viewer):
    """Send a frame, and wait until the model is called for it, where it stays until the gate opens."""
    before = step.num_begun
    step.gate.clear()
    viewer.send(0)
    wait_until(lambda: step.num_begun > before)


def closed_with(viewer):
    """Return the code with which the server closes, and the messages before."""
    messages = []
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            messages.append(viewer.next())
    return caught.value.rcvd.code, messages


def ended(messages):
    """Return why the stream ended, and whether that is an error. Figures may follow, and no picture."""
    [at] = [i for i, one in enumerate(messages) if isinstance(one, dict) and one["type"] == "ended"]
    assert all(isinstance(one, dict) for one in messages[at:])
    return messages[at]["why"], messages[at]["is_error"]


def test_each_frame_gets_its_negative():
    with serving() as server, Viewer(server) as viewer:
        facts = viewer.until("ready")
        assert (facts["model"], facts["height"], facts["width"]) == ("a <model>", *SIZE)
        assert (facts["prompt"], facts["guidance"], facts["steps"], facts["budget_s"]) == (None, None, None, None)
        for sequence, level in ((5, 0), (6, 100), (2**32 - 1, 255)):
            viewer.send(sequence, level, captured_ms=sequence + 0.25)
            messages = [viewer.next(), viewer.next()]
            header, image = next(one for one in messages if not isinstance(one, dict))
            said = next(one for one in messages if isinstance(one, dict) and one["type"] == "next")
            assert said == {"type": "next", "sequence": sequence, "why": ""}
            assert (header.kind, header.sequence, header.captured_ms) == ("computed", sequence, sequence + 0.25)
            assert image.shape == (*SIZE, 3) and abs(image.astype(int) - (255 - level)).max() <= 2


def test_a_rolling_batch_asks_for_frames_that_have_no_answer_yet():
    with serving(Delayed(3)) as server, Viewer(server) as viewer:
        for sequence in range(6):
            viewer.send(sequence, 40 * sequence)
            answers, said = [], None
            while said is None or (sequence >= 2 and not answers):
                message = viewer.next()
                if not isinstance(message, dict):
                    answers.append(message)
                elif message["type"] == "next":
                    said = message["sequence"]
            assert said == sequence
            if sequence >= 2:
                [(header, image)] = answers
                assert header.sequence == sequence - 2
                assert abs(image.astype(int) - (255 - 40 * (sequence - 2))).max() <= 2


def test_frames_that_are_not_finite_show_the_one_before():
    def step(frame):
        return frame / 0 if 0.4 < float(frame.mean()) < 0.6 else 1 - frame

    with serving(step) as server, Viewer(server) as viewer:
        kinds, images = [], []
        for sequence, level in enumerate((10, 128, 250)):
            viewer.send(sequence, level)
            header, image = viewer.answer()
            kinds.append(header.kind)
            images.append(int(image.mean()))
        assert kinds == ["computed", "not finite", "computed"]
        assert images == pytest.approx([245, 245, 5], abs=2)
        wait_until(lambda: viewer.until("figures")["counts"].get("not_finite") == 1)


def test_damaged_and_large_frames_are_refused_and_the_stream_goes_on():
    with serving() as server, Viewer(server) as viewer:
        viewer.send(1, jpeg=b"no picture")
        said = viewer.until("next")
        assert said["sequence"] == 1 and "damaged" in said["why"]
        viewer.send(2, jpeg=bytes(5 * 2**20))
        said = viewer.until("next")
        assert said["sequence"] == 2 and "at most 4,194,304 bytes" in said["why"]
        viewer.socket.send(b"wf")
        assert "16 bytes" in viewer.until("note")["text"]
        viewer.socket.send('{"type": "dance"}')
        assert "does not understand" in viewer.until("note")["text"]
        viewer.say(type="start", source="server")
        assert "has begun already" in viewer.until("note")["text"]
        viewer.send(3, 30, size=(64, 64))
        header, image = viewer.answer()
        assert header.sequence == 3 and image.shape == (*SIZE, 3)
        wait_until(lambda: len(viewer.until("figures")["problems"]) == 3)


def test_a_message_beyond_all_measure_ends_the_connection(monkeypatch):
    monkeypatch.setattr(server_module, "_MAX_MESSAGE", 2**16)
    with serving() as server, Viewer(server) as viewer:
        viewer.until("ready")
        viewer.send(1, jpeg=bytes(2**17))
        assert closed_with(viewer)[0] == 1009


def test_prompt_and_guidance_change_while_it_runs():
    step = Negative()
    with serving(model=guided(step), options=StreamOptions(guidance=Guidance("self", 1.5))) as server:
        with Viewer(server) as viewer:
            facts = viewer.until("ready")
            assert facts["prompt"] == "" and facts["guidance"] == {"kind": "self", "weight": 1.5, "delta": 1.0}
            viewer.send(0)
            viewer.say(type="prompt", prompt="a <cat>", negative="dogs")
            said = viewer.until("settings")
            assert (said["prompt"], said["negative"], said["error"]) == ("a <cat>", "dogs", "")
            viewer.say(type="prompt", prompt="bad")
            said = viewer.until("settings")
            assert (said["prompt"], said["error"]) == ("a <cat>", "this prompt is bad; write another one")
            viewer.say(type="prompt", prompt="worse")
            assert "worse" in viewer.until("settings")["error"]
            viewer.say(type="guidance", kind="onetime", weight=2)
            assert viewer.until("settings")["guidance"] == {"kind": "onetime", "weight": 2.0, "delta": 1.0}
            viewer.say(type="guidance", kind="full", weight=2)
            said = viewer.until("settings")
            assert said["guidance"]["kind"] == "onetime" and "no full guidance" in said["error"]
            viewer.say(type="guidance", kind="self", weight=1000)
            said = viewer.until("settings")
            assert said["guidance"]["kind"] == "onetime" and "weight from 0 to 100" in said["error"]
            assert step.asked == [("a <cat>", "dogs"), Guidance("onetime", 2.0)]
            viewer.send(1)
            assert viewer.answer()[0].kind == "computed"  # no error ended the stream
        with Viewer(server) as viewer:
            assert viewer.until("ready")["prompt"] == "a <cat>"  # what was set holds for the next viewer too


def test_a_model_without_text_says_so():
    with serving() as server, Viewer(server) as viewer:
        viewer.until("ready")
        viewer.say(type="prompt", prompt="a cat")
        assert "takes no text" in viewer.until("settings")["error"]


def test_a_change_is_refused_while_another_of_its_kind_is_being_made():
    step = Negative()
    with serving(model=guided(step)) as server, Viewer(server) as viewer:
        viewer.until("ready")
        hold(step, viewer)
        for number in range(50):
            viewer.say(type="prompt", prompt=f"number {number}")
        assert "try again" in viewer.until("note")["text"]
        viewer.say(type="guidance", kind="self", weight=1)
        step.gate.set()
        settled = [viewer.until("settings") for _ in range(2)]
        assert {one["prompt"] for one in settled} >= {step.asked[0][0]}
        assert Guidance("self", 1.0) in step.asked and len(step.asked) <= 50


def test_the_servers_own_source_plays_to_its_end():
    reports = []
    with serving(source="synthetic:12", reports=reports) as server, Viewer(server, "server") as viewer:
        assert viewer.until("ready")["own_source"] == "synthetic:12"
        code, messages = closed_with(viewer)
        pictures = [one for one in messages if not isinstance(one, dict)]
        assert code == ENDED and ended(messages) == ("the source has ended", False)
        inputs = {header.sequence: image for header, image in pictures if header.kind == "input"}
        answers = {header.sequence: image for header, image in pictures if header.kind == "computed"}
        assert answers and set(answers) == set(inputs)
        for sequence, image in answers.items():
            assert abs(image.astype(int) + inputs[sequence] - 255).mean() < 8  # JPEG changes both
    [report] = reports
    assert report.source == "synthetic" and report.counts["arrived"] == 12 and not report.interrupted


def test_a_source_that_cannot_be_opened_and_a_model_that_fails_are_told():
    def fails(frame):
        raise ValueError("out of order")

    with serving(fails, source="/nowhere.mp4") as server:
        with Viewer(server, "server") as viewer:
            code, messages = closed_with(viewer)
            why, is_error = ended(messages)
            assert code == ENDED and is_error and "/nowhere.mp4" in why
        with Viewer(server) as viewer:
            viewer.send(0)
            code, messages = closed_with(viewer)
            why, is_error = ended(messages)
            assert code == ENDED and is_error and "out of order" in why


def test_a_second_viewer_is_refused_and_comes_in_once_the_first_has_gone():
    step, reports = Negative(), []
    with serving(step, reports=reports) as server:
        with Viewer(server) as first:
            first.send(0)
            first.answer()
            with Viewer(server) as second:
                code, messages = closed_with(second)
                assert code == BUSY and "somebody else" in messages[-1]["why"]
            first.send(1)
            assert first.answer()[0].sequence == 1
        wait_until(lambda: reports)
        num_resets = step.num_resets
        with Viewer(server) as third:
            third.send(0)
            assert third.answer()[0].sequence == 0
        wait_until(lambda: len(reports) == 2)
        assert step.num_resets == num_resets + 1  # nothing of the first viewer is left
        assert [report.counts["arrived"] for report in reports] == [2, 1]
        assert len(step.threads) == 1


def test_a_viewer_that_goes_away_in_the_middle_frees_the_model():
    step, reports = Negative(), []
    with serving(step, reports=reports) as server:
        viewer = Viewer(server)
        viewer.until("ready")
        hold(step, viewer)
        viewer.socket.socket.shutdown(socket.SHUT_RDWR)  # without a word
        time.sleep(0.1)
        step.gate.set()
        wait_until(lambda: reports)
        with Viewer(server) as other:
            other.send(1)
            assert other.answer()[0].sequence == 1
        wait_until(lambda: len(reports) == 2)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("whet-stream-source", "whet-stream-sink"))]


def test_a_viewer_that_shows_nothing_holds_up_nobody_and_gets_few_answers():
    with serving(source="synthetic:60") as server, Viewer(server, "server") as viewer:
        num_pictures, counts = 0, {}
        while counts.get("arrived") != 60 or not counts.get("unwritten"):
            message = viewer.socket.recv(timeout=30)
            num_pictures += isinstance(message, bytes)
            if isinstance(message, str) and '"figures"' in message:
                counts = json.loads(message)["counts"]
        assert num_pictures == 4  # two answers, each with its input


def test_a_level_goes_back_for_the_next_viewer():
    step = Delayed(4)
    with serving(step) as server:
        step.steps = 1  # as a stream that missed its budget leaves it
        with Viewer(server) as viewer:
            assert viewer.until("ready")["steps"] == 4
        assert step.steps == 4


@pytest.mark.parametrize(
    ("headers", "settings", "is_let_in"),
    [
        ({}, {}, True),
        ({"Origin": "http://evil.example"}, {}, False),
        ({"Origin": "null"}, {}, False),
        ({"Origin": "http://app.example"}, {"cors_origins": ("http://app.example",)}, True),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, {}, False),
        ({"Host": "evil.example", "Origin": "http://app.example"}, {"cors_origins": ("http://app.example",)}, False),
    ],
)
def test_strangers_are_refused_at_the_handshake(headers, settings, is_let_in):
    step = Negative()
    with serving(step, **settings) as server:
        before = step.num_resets
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": key}
        connection.request("GET", "/stream", headers={**upgrade, "Sec-WebSocket-Version": "13", **headers})
        assert connection.getresponse().status == (101 if is_let_in else 403)
        connection.close()
        assert step.num_resets == before  # nothing was started


def test_the_own_page_is_let_in_and_another_is_not():
    with serving() as server:
        with Viewer(server, origin=server.url) as viewer:
            viewer.until("ready")
        with pytest.raises(InvalidStatus) as caught:
            Viewer(server, origin="http://evil.example")
        assert caught.value.response.status_code == 403


def test_keys():
    step = Negative()
    with serving(step, api_keys=("first", "second")) as server:
        before = step.num_resets
        for key in ("", "First", "firs"):
            with Viewer(server, key=key) as viewer:
                code, messages = closed_with(viewer)
                assert code == NO_KEY and "API key" in messages[-1]["why"]
        assert step.num_resets == before
        with Viewer(server, key="second") as viewer:
            viewer.until("ready")


def test_a_connection_that_does_not_begin_as_it_should(monkeypatch):
    monkeypatch.setattr("whet.streamer.http.viewers._START_S", 0.2)
    with serving() as server:
        for first in ("no JSON", '{"type": "shown"}', b"bytes", None):
            with Viewer(server, starts=False) as viewer:
                if first is not None:
                    viewer.socket.send(first)
                code, messages = closed_with(viewer)
                assert code == MISUNDERSTOOD and messages[-1]["type"] == "refused"


def test_the_end_of_the_server_is_told_and_reported():
    reports = []
    with serving(reports=reports) as server, Viewer(server) as viewer:
        viewer.send(0)
        viewer.answer()
        threading.Timer(0.1, server.stop).start()
        assert closed_with(viewer)[0] == GOING
    [report] = reports
    assert report.interrupted and report.counts["final"] == 1 and report.sink == "the page"


def test_a_server_that_was_started_again_takes_the_viewer_back():
    with serving() as server, Viewer(server) as viewer:
        viewer.until("ready")
        port = server.port
    with serving(port=port) as server, Viewer(server) as viewer:
        viewer.send(0)
        assert viewer.answer()[0].sequence == 0


def test_a_grey_jpeg_of_the_camera_is_taken():
    file = io.BytesIO()
    PIL.Image.new("L", (SIZE[1], SIZE[0]), 60).save(file, "JPEG")
    with serving() as server, Viewer(server) as viewer:
        viewer.send(0, jpeg=file.getvalue())
        assert abs(int(np.mean(viewer.answer()[1])) - 195) <= 2


def test_the_model_is_called_in_one_thread_and_never_in_that_of_the_server():
    step = Negative()
    with serving(step) as server, Viewer(server) as viewer:
        viewer.send(0)
        viewer.answer()
        assert len(step.threads) == 1 and next(iter(step.threads)).startswith("whet-stream-model")


def test_viewers_that_come_and_go_leave_nothing_behind():
    step, reports = Negative(), []
    with serving(step, reports=reports) as server:
        for number in range(12):
            with Viewer(server, "server" if number % 3 == 2 else "camera") as viewer:
                if number % 3 == 0:
                    continue  # it goes before anything has begun
                if number % 3 == 1:
                    viewer.send(0)
                    viewer.send(1)
                viewer.answer()
        wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("whet-stream-s")])
        with Viewer(server) as viewer:
            viewer.send(0, 200)
            assert abs(int(viewer.answer()[1].mean()) - 55) <= 2
    assert len(reports) >= 9 and len(step.threads) == 1
