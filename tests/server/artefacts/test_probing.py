"""Whether clients' samples may share a call: models that mix them, and sizes that they do not take."""

import asyncio
from typing import Any

import pytest
import torch
from functions_served import DOUBLED, artefact_of, doubled
from torch import Tensor

from whet.errors import TargetError
from whet.server.artefacts.served_artefact import ServedArtefact


def normalised_over_the_batch(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1)


def quantised_by_one_range(x: Tensor) -> Tensor:
    scale = x.abs().max() / 7
    return (x / scale).round() * scale


def placed(x: Tensor) -> Tensor:
    return x + torch.arange(len(x))[:, None]


def transposed(x: Tensor) -> Tensor:
    return x.T


def summed(x: Tensor) -> Tensor:
    return x.sum()


def other_for_one(x: Tensor) -> Tensor:
    return x if len(x) == 1 else x * 2


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (normalised_over_the_batch, "other samples"),
        (quantised_by_one_range, "other samples"),
        (placed, "its place"),
        (transposed, "first dimension of an output"),
        (summed, "first dimension of an output"),
        (other_for_one, "size of its batch"),
    ],
)
def test_models_that_mix_samples_run_one_request_at_a_time(function: Any, why: str) -> None:
    served = ServedArtefact("mixing", artefact_of(function, *DOUBLED))
    assert why in served.why_alone
    requests = [torch.randn(3, 3), torch.randn(1, 3), torch.randn(4, 3)]

    async def ask() -> list[list[Tensor]]:
        return list(await asyncio.gather(*(served.infer([x]) for x in requests)))

    for x, [y] in zip(requests, asyncio.run(ask()), strict=True):
        assert torch.equal(y, function(x))
    served.close()


def test_ids_that_are_rare_are_tried_too() -> None:
    table = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0))
    table[500:510] *= 30

    def function(ids: Tensor) -> Tensor:
        return quantised_by_one_range(table[ids])

    artefact = artefact_of(function, torch.zeros(2, 5, dtype=torch.int64), torch.zeros(3, 5, dtype=torch.int64))
    artefact.manifest.conditions = ["L['least'][0] >= 0", "L['largest'][0] <= 999"]
    served = ServedArtefact("table", artefact)
    assert "other samples" in served.why_alone
    served.close()


@pytest.mark.parametrize("runtime", ["program", "inductor"])
def test_numbers_of_unknown_range_are_tried_where_a_wrong_index_raises(runtime: str) -> None:
    largest = []

    def function(x: Tensor) -> Tensor:
        largest.append(int(x.max()))
        return quantised_by_one_range(x.float().clamp(min=4))  # 0 and 1 are all the same

    artefact = artefact_of(function, torch.zeros(2, 5, dtype=torch.uint8), torch.zeros(3, 5, dtype=torch.uint8))
    artefact.manifest.runtime = runtime
    served = ServedArtefact("pixels", artefact)
    assert ("other samples" in served.why_alone) == (runtime == "program")
    assert (max(largest) > 1) == (runtime == "program")  # compiled code would end the process
    served.close()


@pytest.mark.parametrize(("ranges", "why"), [(True, "in all samples at once"), (None, "write it again"), (False, "")])
def test_what_an_artefact_says_of_its_ranges(ranges: bool | None, why: str) -> None:
    artefact = artefact_of(doubled, *DOUBLED)
    artefact.runtime.ranges_per_call = ranges
    served = ServedArtefact("doubled", artefact)
    assert why in served.why_alone
    assert bool(served.why_alone) == bool(why)
    served.close()


def test_models_whose_samples_are_strangers_share_calls() -> None:
    served = ServedArtefact("doubled", artefact_of(doubled, *DOUBLED))
    assert (served.why_alone, served.batch_size) == ("", None)
    assert [str(spec) for spec in served.outputs] == ["twice: FP32 [-1, 3]", "sum: FP32 [-1]"]
    served.close()


def test_a_fixed_batch_is_filled_up() -> None:
    sizes = []

    def function(x: Tensor) -> Tensor:
        sizes.append(len(x))
        assert len(x) == 4
        return x * 2

    served = ServedArtefact("four", artefact_of(function, torch.zeros(4, 3)))
    assert (served.why_alone, served.batch_size) == ("", 4)
    sizes.clear()
    x = torch.arange(18.0).reshape(6, 3)
    [y] = asyncio.run(served.infer([x]))
    assert torch.equal(y, x * 2)
    assert sizes == [4, 4]
    served.close()


def test_a_model_that_takes_no_single_sample_gets_two() -> None:
    def function(x: Tensor) -> Tensor:
        assert len(x) > 1
        return x * 2

    served = ServedArtefact("two", artefact_of(function, *DOUBLED))
    [y] = asyncio.run(served.infer([torch.ones(1, 3)]))
    assert y.tolist() == [[2, 2, 2]]
    served.close()


def test_free_lengths_share_a_call_where_they_are_equal() -> None:
    shapes = []

    def function(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return x.cumsum(1)

    served = ServedArtefact("cumsum", artefact_of(function, torch.zeros(2, 3), torch.zeros(3, 5)))
    assert str(served.outputs[0]) == "output_0: FP32 [-1, -1]"
    shapes.clear()
    samples = [(torch.ones(length),) for length in (3, 5, 3, 5, 5)]
    results = asyncio.run(served.infer_samples(samples))
    assert [len(result[0]) for result in results] == [3, 5, 3, 5, 5]
    assert sorted(shapes) == [(2, 3), (3, 5)]
    served.close()


def test_types_that_the_protocol_does_not_have() -> None:
    with pytest.raises(TargetError, match="takes complex64"):
        ServedArtefact("complex", artefact_of(lambda x: x, torch.zeros(2, 3, dtype=torch.complex64)))
    with pytest.raises(TargetError, match="returns complex64"):
        ServedArtefact("complex", artefact_of(lambda x: x.to(torch.complex64), *DOUBLED))


def test_a_model_that_no_made_up_input_fits() -> None:
    def function(x: Tensor) -> Tensor:
        if not bool((x == 7).all()):
            raise ValueError("only sevens")
        return x * 2

    served = ServedArtefact("sevens", artefact_of(function, torch.full((2, 3), 7.0), torch.full((3, 3), 7.0)))
    assert served.why_alone == "no made-up input could be run"
    assert served.outputs == ()
    [y] = asyncio.run(served.infer([torch.full((5, 3), 7.0)]))
    assert y.tolist() == [[14.0] * 3] * 5
    served.close()
