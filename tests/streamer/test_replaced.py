"""Other code stands for the models of a step, where the inputs have its shapes, and can be taken away again."""

import torch

from whet.streamer.module_swaps import Replacements, fits, shapes_of


class Doubling:
    """A step with one model, whose call doubles."""

    def __init__(self) -> None:
        self.call = lambda x, *, shift: 2 * x + shift
        self.call_modules = {"doubling": torch.nn.Identity()}

    def wrap(self, wrapper):
        self.call = wrapper("doubling", self.call)

    def reset(self):
        pass


def test_a_replacement_takes_the_calls_of_its_shapes_alone():
    step = Doubling()
    replacements = Replacements(step)
    assert replacements.names == ("doubling",)
    small, large, shift = torch.ones(2), torch.ones(3), torch.zeros(1)
    replacements.replace("doubling", lambda x, *, shift: x - 5, shapes_of((small,), {"shift": shift}))
    assert step.call(small, shift=shift).tolist() == [-4.0, -4.0]
    assert step.call(large, shift=shift).tolist() == [2.0, 2.0, 2.0]
    assert step.call(small, shift=torch.zeros(2)).tolist() == [2.0, 2.0]  # an argument by name counts too
    assert replacements.num_others == 2
    replacements.put_back()
    assert step.call(small, shift=shift).tolist() == [2.0, 2.0]


def test_a_replacement_within_a_context_gives_way_to_the_one_before():
    step = Doubling()
    replacements = Replacements(step)
    replacements.replace("doubling", lambda x, *, shift: x + 10)
    with replacements.replaced("doubling", lambda x, *, shift: x + 20):
        assert step.call(torch.zeros(1), shift=torch.zeros(1)).item() == 20
    assert step.call(torch.zeros(1), shift=torch.zeros(1)).item() == 10


def test_a_step_without_models_has_nothing_to_replace():
    assert Replacements(lambda frame: frame).names == ()


def test_a_step_that_is_opened_anew_for_each_stream_keeps_its_models(monkeypatch):
    monkeypatch.delattr(Doubling, "reset")
    assert Replacements(Doubling()).names == ()


def test_shapes_do_not_depend_on_the_order_of_names():
    x, y = torch.zeros(1), torch.zeros(2, 3)
    assert shapes_of((x,), {"a": x, "b": y}) == shapes_of((x,), {"b": y, "a": x})
    assert shapes_of((x, y), {}) != shapes_of((y, x), {})


def test_none_stands_for_any_size():
    taken = (("0", (None, 3)), ("shift", (1,)))
    x, shift = torch.zeros(5, 3), torch.zeros(1)
    assert fits(taken, shapes_of((x,), {"shift": shift}))
    assert not fits(taken, shapes_of((torch.zeros(5, 4),), {"shift": shift}))
    assert not fits(taken, shapes_of((torch.zeros(3),), {"shift": shift}))
    assert not fits(taken, shapes_of((x,), {}))
    assert not fits(taken, shapes_of((x,), {"scale": shift}))
