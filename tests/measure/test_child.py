"""The child's end of the exchange, called in this process."""

import json
import sys
from typing import Any

import pytest
import torch

from whet.errors import InputsError
from whet.measure import child


def call(function: str, **arguments: Any) -> dict[str, Any]:
    return json.loads(child._call(f"{__name__}:{function}", arguments))  # type: ignore[no-any-return]


def double(x: float) -> dict[str, float]:
    return {"twice": 2 * x}


def leave(code: int) -> dict[str, Any]:
    sys.exit(code)


def no_json() -> dict[str, Any]:
    return {"value": object()}


def no_dict() -> list[int]:
    return [1, 2]


def allocate(num_bytes: int) -> dict[str, Any]:
    return {"shape": list(torch.empty(num_bytes, dtype=torch.int8).shape)}


def fail(name: str) -> dict[str, Any]:
    class OutOfMemoryError(RuntimeError):
        """As torch's, which only a GPU raises."""

    raise {
        "gpu": OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        "python": MemoryError(),
        "silent": AssertionError(),
        "user": InputsError("turn it"),
        "other": RuntimeError("memory of a goldfish\nsecond line"),
        "long": ValueError("x" * 10_000),
    }[name]


def test_a_value_is_json() -> None:
    assert call("double", x=1.25) == {"value": {"twice": 2.5}}


def test_not_a_number_survives() -> None:
    found = call("double", x=float("nan"))["value"]["twice"]
    assert found != found


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gpu", "memory"), ("python", "memory"), ("silent", "error"), ("other", "error"), ("user", "user")],
)
def test_running_out_of_memory_and_user_errors_are_told_from_others(name: str, kind: str) -> None:
    assert call("fail", name=name)["kind"] == kind


def test_a_tensor_that_does_not_fit_is_a_failure_of_memory() -> None:
    assert call("allocate", num_bytes=2**60)["kind"] == "memory"


@pytest.mark.parametrize(
    ("function", "message"),
    [("no_json", "not JSON serializable"), ("no_dict", "must return a model, a dict or nothing, not list")],
)
def test_a_result_that_is_no_dict_of_json_is_an_error(function: str, message: str) -> None:
    found = call(function)
    assert (found["kind"], found["type"]) == ("error", "TypeError")
    assert message in found["message"]


def test_a_function_or_module_that_is_not_there_is_an_error() -> None:
    assert call("nothing_of_this_name")["type"] == "AttributeError"
    assert json.loads(child._call("no_such_module:f", {}))["message"] == (
        "ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_tracebacks_go_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    call("fail", name="other")
    assert "Traceback" in capsys.readouterr().err
    call("fail", name="user")
    assert capsys.readouterr().err == ""


def test_messages_are_one_line_of_moderate_length() -> None:
    assert call("fail", name="other")["message"] == "RuntimeError: memory of a goldfish"
    assert call("fail", name="silent")["message"] == "AssertionError: AssertionError"
    assert len(call("fail", name="long")["message"]) < 500


def test_leaving_is_no_error_to_be_caught() -> None:
    with pytest.raises(SystemExit):
        call("leave", code=3)


def test_wrong_arguments_are_an_error() -> None:
    found = call("double", y=1)
    assert (found["kind"], found["type"]) == ("error", "TypeError")
