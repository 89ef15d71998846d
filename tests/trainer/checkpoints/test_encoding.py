"""Values come back from JSON as they were."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from whet.errors import CheckpointError, OptionError
from whet.trainer.checkpoints.encoding import decoded, encoded


def test_values_come_back_as_they_were() -> None:

    value = {
        "tuple": (1, (2.5, None)),
        "numbers": {1: "a", (1, 2): [True]},
        "$tuple": [1],
        "one": {"$dict": 3},
        "counter": Counter({30: 2, 80: 1}),
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "array": np.array([[1, 2]], dtype=np.uint32),
        "tensors": [torch.arange(3), {"a": torch.zeros(())}],
    }
    tensors: dict[str, Tensor] = {}
    read = decoded(json.loads(json.dumps(encoded(value, tensors, "x"))), tensors)
    assert tensors.keys() == {"x.tensors.0", "x.tensors.1.a"}
    array, expected = read.pop("array"), value.pop("array")
    assert array.dtype == np.uint32 and np.array_equal(array, expected)  # type: ignore[arg-type]
    for name in ("tuple", "numbers", "$tuple", "one", "counter", "dtype", "size"):
        assert read[name] == value[name]
        assert type(read[name]) is type(value[name])
    assert encoded(np.float64(0.1), {}, "x") == 0.1
    for bad in ({1, 2}, object(), b"bytes", np.array(["a"]), len, torch.nn.Linear):
        with pytest.raises(OptionError, match="which a checkpoint does not hold"):
            encoded(bad, {}, "x")


@pytest.mark.parametrize(
    "value",
    [
        {"$tensor": "missing"},
        {"$subclass": ["os.system", {}, []]},
        {"$dtype": "nn"},
        {"$array": ["O", [1], [1]]},
        {"$array": ["<i8", [3], [1]]},
        {"$dict": [[[], 1]]},
        {"$tuple": 3},
        {"$size": "x"},
    ],
)
def test_values_that_are_damaged_are_refused(value: Any) -> None:
    with pytest.raises(CheckpointError):
        decoded([value], {})
