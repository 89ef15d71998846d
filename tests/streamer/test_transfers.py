"""Frames cross to a device and back on streams of their own: nothing is read before it has arrived."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from whet.streamer.model import FrameModel, as_image
from whet.streamer.transfers import NUM_BUFFERS, Transfers


class Late(TorchDispatchMode):
    """Put copies off, as a stream of a GPU does, and remember them."""

    def __init__(self, copies):
        super().__init__()
        self._copies = copies

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default:
            self._copies.append((args[0], args[1]))
            return args[0]
        return function(*args, **(kwargs or {}))


class FakeEvent:
    def __init__(self, streams, place):
        self._streams, self.place = streams, place

    def synchronize(self):
        self._streams.run_until(self.place)


class FakeStreams:
    """Copy on the CPU, each copy only when somebody waits for it."""

    def __init__(self):
        self.copies, self.num_run, self.num_buffers = [], 0, 0

    def run_until(self, place):
        for target, source in self.copies[self.num_run : place]:
            target.copy_(source)
        self.num_run = max(self.num_run, place)

    def buffer(self, shape):
        self.num_buffers += 1
        return torch.zeros(shape, dtype=torch.uint8)

    @contextmanager
    def uploading(self):
        with Late(self.copies):
            yield

    fetching = uploading

    def mark(self):
        return FakeEvent(self, len(self.copies))

    def wait_for(self, event, tensor):
        event.synchronize()

    def empty(self, shape):
        return torch.zeros(shape, dtype=torch.uint8)


def image(value: int, shape=(2, 3, 3)) -> np.ndarray:
    return np.full(shape, value, np.uint8)


def test_a_frame_is_read_only_after_it_has_arrived():
    streams = FakeStreams()
    transfers = Transfers(streams)
    sent = image(7)
    staged = transfers.upload(sent)
    sent[:] = 9  # the source may write its picture again
    assert int(staged.pixels.max()) == 0 and streams.num_run == 0  # it is still on its way
    assert torch.equal(transfers.arrived(staged), torch.full((2, 3, 3), 7, dtype=torch.uint8))


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_a_buffer_is_not_written_while_a_copy_reads_it(drops: list[bool]):
    """Frames that a newer one replaces are never waited for, and their buffers come back all the same."""
    streams = FakeStreams()
    transfers = Transfers(streams)
    for value, is_dropped in enumerate(drops):
        staged = transfers.upload(image(value))
        if not is_dropped:
            assert int(transfers.arrived(staged).min()) == int(staged.pixels.max()) == value
    assert streams.num_buffers <= NUM_BUFFERS


def test_all_frames_on_their_way_keep_their_own_values():
    transfers = Transfers(FakeStreams())
    staged = [transfers.upload(image(value)) for value in range(NUM_BUFFERS)]
    assert [int(transfers.arrived(one)[0, 0, 0]) for one in staged] == [0, 1, 2]


def test_sizes_may_change():
    transfers = Transfers(FakeStreams())
    for side in (2, 4, 3, 2, 5):
        staged = transfers.upload(image(side, (side, side, 3)))
        assert torch.equal(transfers.arrived(staged), torch.full((side, side, 3), side, dtype=torch.uint8))
        fetched = transfers.fetch(torch.full((side, side, 3), side, dtype=torch.uint8))
        assert (fetched == side).all() and fetched.shape == (side, side, 3)


def test_an_answer_is_not_changed_by_the_next_one():
    transfers = Transfers(FakeStreams())
    first = transfers.fetch(torch.full((2, 2, 3), 1, dtype=torch.uint8))
    transfers.fetch(torch.full((2, 2, 3), 2, dtype=torch.uint8))
    assert (first == 1).all()


def with_streams(step) -> FrameModel:
    model = FrameModel(step)
    model._transfers = Transfers(FakeStreams())
    return model


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_stream_computes_the_same_with_transfers_and_without(scale):
    generator = np.random.default_rng(0)
    with_, without = with_streams(torch.sin), FrameModel(torch.sin)
    for _ in range(4):
        picture = generator.integers(0, 256, (8, 6, 3), np.uint8)
        there, here = with_.as_input(with_.stage(picture), scale), without.as_input(without.stage(picture), scale)
        assert torch.equal(there, here)
        assert (with_.as_image(with_(there)) == without.as_image(without(here))).all()


def test_an_answer_that_is_not_finite_is_no_image_on_either_way():
    broken = torch.tensor([[[0.5, float("nan")]]]).expand(3, 1, 2)
    assert as_image(broken) is None
    assert with_streams(torch.sin).as_image(broken) is None


@pytest.mark.gpu
def test_frames_cross_to_a_gpu_and_back():
    """Copies run beside a model that keeps the GPU busy, and each answer is that of its own frame."""
    device = "cuda"
    weights = torch.randn(2048, 2048, device=device)

    def step(frame):
        busy = weights
        for _ in range(20):
            busy = torch.tanh(busy @ weights)
        return frame * (1 + 0 * busy[0, 0])

    model = FrameModel(step, device=device)
    generator = np.random.default_rng(0)
    pictures = [generator.integers(0, 256, (64, 48, 3), np.uint8) for _ in range(12)]
    staged = [model.stage(pictures[0])]
    for place, picture in enumerate(pictures):
        if place + 1 < len(pictures):
            staged.append(model.stage(pictures[place + 1]))  # as the reader's thread does
        answer = model.as_image(model(model.as_input(staged[place])))
        assert (answer == picture).all()
