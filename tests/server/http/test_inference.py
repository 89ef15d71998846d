"""The Open Inference Protocol over HTTP: what is answered, judged by known functions and by Triton's own client."""

import json
import re
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import ask, serving
from fake_engine import FakeEngine
from functions_served import DOUBLED, INPUT, X, artefact_of, doubled, infer, refusal, serving_functions
from small_programs import save, small
from torch import Tensor

import whet
from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.artefacts.tensor_specs import DATATYPES, TensorSpec
from whet.server.http import inference
from whet.server.http.errors import ApiError
from whet.server.http.models import Models
from whet.server.http.run import HttpServer
from whet.server.http.tensors import read_inference


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving_functions({"doubled": (doubled, DOUBLED)}) as found:
        yield found


def test_what_is_served(server: HttpServer) -> None:
    assert ask(server, "/v2").json["extensions"] == ["binary_tensor_data"]
    assert ask(server, "/v2/health/live").json == {"live": True}
    assert ask(server, "/v2/health/ready").json == {"ready": True}
    for version in ("", "/versions/1"):
        assert ask(server, f"/v2/models/doubled{version}/ready").json == {"name": "doubled", "ready": True}
        assert ask(server, f"/v2/models/doubled{version}").json == {
            "name": "doubled",
            "versions": ["1"],
            "platform": "whet",
            "inputs": [{"name": "input_0", "datatype": "FP32", "shape": [-1, 3]}],
            "outputs": [
                {"name": "twice", "datatype": "FP32", "shape": [-1, 3]},
                {"name": "sum", "datatype": "FP32", "shape": [-1]},
            ],
        }
    assert [model["id"] for model in ask(server, "/v1/models").json["data"]] == ["doubled"]


@pytest.mark.parametrize("data", [X, [1, 2, 3, 4, 5, 6.5]])
@pytest.mark.parametrize("path", ["/v2/models/doubled/infer", "/v2/models/doubled/versions/1/infer"])
def test_json(server: HttpServer, data: object, path: str) -> None:
    answer = infer(server, {"id": "mine", "inputs": [{**INPUT, "data": data}]}, path)
    assert answer.json == {
        "model_name": "doubled",
        "model_version": "1",
        "id": "mine",
        "outputs": [
            {"name": "twice", "datatype": "FP32", "shape": [2, 3], "data": [2.0, 4.0, 6.0, 8.0, 10.0, 13.0]},
            {"name": "sum", "datatype": "FP32", "shape": [2], "data": [6.0, 15.5]},
        ],
    }


@pytest.mark.parametrize("kind", ["text/plain", "Text/Plain; charset=utf-8", "multipart/form-data; boundary=x"])
def test_bodies_that_any_web_page_can_send_are_refused(server: HttpServer, kind: str) -> None:
    body = json.dumps({"inputs": [{**INPUT, "data": X}]}).encode()
    headers = {"Content-Type": kind, "Origin": "http://evil.example"}
    answer = ask(server, "/v2/models/doubled/infer", body, headers=headers)
    assert answer.status == 415
    assert "application/json" in str(answer.json["error"])


def test_outputs_that_are_asked_for(server: HttpServer) -> None:
    wishes = [{"name": "sum"}, {"name": "twice", "parameters": {"binary_data": True}}]
    answer = infer(server, {"inputs": [INPUT], "outputs": wishes})
    size = int(answer.headers["inference-header-content-length"])
    head = json.loads(answer.content[:size])
    assert [one["name"] for one in head["outputs"]] == ["sum", "twice"]
    assert head["outputs"][0]["data"] == [6.0, 15.5]
    assert head["outputs"][1]["parameters"] == {"binary_data_size": 24}
    assert np.frombuffer(answer.content[size:], "<f4").tolist() == [2, 4, 6, 8, 10, 13]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [2, 4]}, r"shape \[2, 4\]; the model takes input_0: FP32 \[-1, 3\]"),
        ({"shape": [0, 3], "data": []}, "holds no value"),
        ({"shape": [3]}, "the model takes"),
        ({"shape": [-1, 3]}, "greater than or equal to 0"),
        ({"datatype": "FP64"}, "is FP64; the model takes"),
        ({"datatype": "BYTES", "data": ["a"]}, "is BYTES"),
        ({"name": "other"}, "the model has no input 'other'; it takes input_0"),
        ({"data": X[:1]}, "holds 3 values"),
        ({"data": [[1, 2], [3]]}, "different lengths"),
        ({"data": [[1, 2, 3, 4, 5, 6]]}, r"`data` has shape \[1, 6\]"),
        ({"data": ["1", "2", "3", "4", "5", "6"]}, "no FP32"),
        ({"data": [1, 2, 3, 4, 5, None]}, "no FP32"),
        ({"data": [True, 2, 3, 4, 5, 6]}, "no FP32"),
        ({"data": [1, [2], 3, 4, 5, 6]}, "no FP32"),
        ({"data": [[1, 2, 3], 4]}, "different lengths"),
        ({"data": [[1, 2, 3], [4, 5, {}]]}, "no FP32"),
        ({"data": [1, 2, 3, 4, 5, 1e300]}, "out of the range"),
        ({"data": None}, "neither `data` nor"),
        ({"parameters": {"binary_data_size": 24}}, "send one of them"),
        ({"data": None, "parameters": {"binary_data_size": 20}}, "takes 24 bytes"),
        ({"data": None, "parameters": {"binary_data_size": True}}, "takes 24 bytes"),
        ({"data": None, "parameters": {"binary_data_size": 24}}, "0 bytes are left"),
        ({"parameters": {"shared_memory_region": "a"}}, "shared_memory_region"),
    ],
)
def test_inputs_that_are_refused(server: HttpServer, change: dict[str, Any], message: str) -> None:
    said = refusal(infer(server, {"inputs": [{**INPUT, **change}]}), 400)
    assert re.search(message, said), said


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "cannot be read as JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "inputs"),
        (b'{"inputs": []}', "at least 1"),
        (b'{"inputs": [{"name": "input_0", "datatype": "FP32", "shape": [1, 3], "data": [1, NaN, 2]}]}', "NaN"),
        (b'{"inputs": [{"name": "input_0", "datatype": "FP32", "shape": [1, 3], "data": [1, 1e999, 2]}]}', "range"),
        (b"[" * 100_000, "JSON"),
        (b"\xff\xfe", "JSON"),
    ],
)
def test_bodies_that_are_refused(server: HttpServer, body: bytes, message: str) -> None:
    assert message in refusal(infer(server, body), 400)


def test_requests_that_are_refused(server: HttpServer) -> None:
    twice = {"inputs": [INPUT, INPUT]}
    assert "given twice" in refusal(infer(server, twice), 400)
    assert "no output 'none'" in refusal(infer(server, {"inputs": [INPUT], "outputs": [{"name": "none"}]}), 400)
    assert "sequence_id" in refusal(infer(server, {"inputs": [INPUT], "parameters": {"sequence_id": 3}}), 400)
    assert "no model 'other'" in refusal(infer(server, {}, "/v2/models/other/infer"), 404)
    assert "no version '2'" in refusal(infer(server, {}, "/v2/models/doubled/versions/2/infer"), 404)
    assert "there is no path /v2/other" in refusal(ask(server, "/v2/other"), 404)
    assert "does not take GET" in refusal(ask(server, "/v2/models/doubled/infer"), 405)
    assert "encoded" in refusal(infer(server, {"inputs": [INPUT]}, **{"Content-Encoding": "gzip"}), 415)


def binary(values: bytes, size: int, *, header: str | None = None, more: bytes = b"") -> tuple[bytes, str]:
    given = {"name": "input_0", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [given]}).encode()
    return head + values + more, header if header is not None else str(len(head))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (binary(bytes(24), 24, header="0"), "from 1 to"),
        (binary(bytes(24), 24, header="9999"), "from 1 to"),
        (binary(bytes(24), 24, header="-5"), "from 1 to"),
        (binary(bytes(24), 24, header="many"), "from 1 to"),
        (binary(bytes(24), 24, header="10"), "JSON"),
        (binary(bytes(24), 24, header="1" * 5000), "from 1 to"),
        (binary(bytes(20), 24), "20 bytes are left"),
        (binary(bytes(24), 24, more=b"x"), "1 bytes follow"),
        (binary(bytes(24), 28), "takes 24 bytes"),
    ],
)
def test_wrong_lengths_of_binary_data(server: HttpServer, body: tuple[bytes, str], message: str) -> None:
    answer = infer(server, body[0], **{"Inference-Header-Content-Length": body[1]})
    assert message in refusal(answer, 400)


def test_binary_values_may_be_what_json_has_no_numbers_for(server: HttpServer) -> None:
    values = np.array([[np.nan, 1, 2], [np.inf, 3, 4]], "<f4")
    body, length = binary(values.tobytes(), 24)
    said = refusal(infer(server, body, **{"Inference-Header-Content-Length": length}), 400)
    assert "ask for binary_data" in said
    head = json.loads(body[: int(length)]) | {"parameters": {"binary_data_output": True}}
    written = json.dumps(head).encode()
    answer = infer(server, written + values.tobytes(), **{"Inference-Header-Content-Length": str(len(written))})
    size = int(answer.headers["inference-header-content-length"])
    np.testing.assert_array_equal(np.frombuffer(answer.content[size:][:24], "<f4").reshape(2, 3), values * 2)


def same(x: Tensor) -> tuple[Tensor, ...]:
    return (x.clone(),)


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("is_binary", [True, False])
def test_every_datatype_there_and_back(datatype: str, is_binary: bool) -> None:
    triton = pytest.importorskip("tritonclient.http")
    dtype = DATATYPES[datatype]
    if datatype == "BF16" and not is_binary:
        pytest.skip("Triton's client sends BF16 as bytes alone")
    low = 0 if dtype is torch.bool or not (dtype.is_signed or dtype.is_floating_point) else -3
    x = torch.tensor([[low, 1, 2], [3, 4, 5]]).to(dtype)
    bf16 = pytest.importorskip("ml_dtypes").bfloat16 if datatype == "BF16" else None
    values = x.float().numpy().astype(bf16) if bf16 else x.numpy()
    with serving_functions({"same": (same, (x, torch.cat((x, x))))}) as server:
        client = triton.InferenceServerClient(f"{server.host}:{server.port}")
        given = triton.InferInput("input_0", [2, 3], datatype)
        given.set_data_from_numpy(values, binary_data=is_binary)
        wish = triton.InferRequestedOutput("output_0", binary_data=is_binary)
        np.testing.assert_array_equal(client.infer("same", [given], outputs=[wish]).as_numpy("output_0"), values)
        client.close()


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        *[("UINT8", [256]), ("UINT8", [-1]), ("INT64", [2**63]), ("INT32", [1.5]), ("BOOL", [1]), ("INT8", [True])],
        *[("BOOL", [0.0]), ("FP32", [True]), ("FP64", [10**400]), ("UINT64", [2**64]), ("INT64", [None])],
    ],
)
def test_numbers_that_a_datatype_does_not_have(datatype: str, data: list[Any]) -> None:
    x = torch.zeros(1, 1).to(DATATYPES[datatype])
    with serving_functions({"same": (same, (x, torch.cat((x, x))))}) as server:
        given = {"name": "input_0", "datatype": datatype, "shape": [1, 1], "data": data}
        assert datatype in refusal(infer(server, {"inputs": [given]}, "/v2/models/same/infer"), 400)


def test_strings_take_no_memory_of_their_length_for_each_value() -> None:
    data: list[Any] = ["a" * 50_000, *[1] * 20_000]
    body = json.dumps({"inputs": [{**INPUT, "shape": [2, 3], "data": data}]}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="no FP32"):
            read_inference(body, None, [TensorSpec("input_0", torch.float32, (None, 3))], ["out"])
        assert tracemalloc.get_traced_memory()[1] < 20 * len(body)  # numpy made 4 GB of it
    finally:
        tracemalloc.stop()


def test_too_many_values_of_json(server: HttpServer) -> None:
    body = json.dumps({"inputs": [{**INPUT, "shape": [100_000, 3], "data": [1] * 300_000}]}).encode()
    for headers in ({}, {"Inference-Header-Content-Length": str(len(body))}):
        assert "as binary data" in refusal(infer(server, body, **headers), 413)


def test_large_json_is_read_in_a_thread_whatever_the_header_says(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def read(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read_inference(*arguments)

    monkeypatch.setattr(inference, "read_inference", read)
    for rows in (2, 5000):
        body = json.dumps({"inputs": [{**INPUT, "shape": [rows, 3], "data": [1] * 3 * rows}]}).encode()
        for headers in ({}, {"Inference-Header-Content-Length": str(len(body))}):
            infer(server, body, **headers)
    assert ["asyncio_" in name for name in threads] == [False, False, True, True]


def test_an_artefact_by_tritons_client(tmp_path: Path) -> None:
    """As whet.load answers: a dict with a nested tuple, whose text is no tensor."""
    triton = pytest.importorskip("tritonclient.http")
    directory = save(small(), tmp_path / "model")
    artefact, x = whet.load(directory), torch.randn(3, 4)
    served = ServedArtefact("small", artefact)

    with serving(Models(artefacts={"small": served})) as server:  # type: ignore[arg-type]
        client = triton.InferenceServerClient(f"{server.host}:{server.port}")
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("small")
        assert [output["name"] for output in client.get_model_metadata("small")["outputs"]] == ["logits", "rest.0"]
        given = triton.InferInput("input_0", [3, 4], "FP32")
        given.set_data_from_numpy(x.numpy())
        found = client.infer("small", [given], request_id="7")
        assert found.get_response()["id"] == "7"
        expected = artefact(x)
        torch.testing.assert_close(torch.tensor(found.as_numpy("logits")), expected.logits)
        assert found.as_numpy("rest.0").tolist() == expected.rest[0].tolist()
        with pytest.raises(triton.InferenceServerException, match="no input 'other'"):
            client.infer("small", [triton.InferInput("other", [1], "FP32").set_data_from_numpy(np.zeros(1, "f"))])
        client.close()
    served.close()


def test_guards_hold_for_these_paths_too() -> None:
    with serving_functions({"doubled": (doubled, DOUBLED)}, api_keys=("key",), max_body_bytes=500) as server:
        path = "/v2/models/doubled/infer"
        assert "API key" in refusal(infer(server, {"inputs": [INPUT]}), 401)
        assert "API key" in refusal(ask(server, "/v2/models/doubled"), 401)
        assert ask(server, "/v2/health/ready").status == 200  # as /health
        key = {"Authorization": "Bearer key"}
        assert infer(server, {"inputs": [INPUT]}, path, **key).status == 200
        assert "larger than the 500 bytes" in refusal(infer(server, b" " * 501, path, **key), 413)


def test_an_engine_beside_it_and_requests_to_the_wrong_one() -> None:

    served = ServedArtefact("doubled", artefact_of(doubled, *DOUBLED))
    with serving(Models({("gpt", "alias"): FakeEngine()}, {"doubled": served})) as server:  # type: ignore[arg-type, dict-item]
        listed = {model["id"]: model["max_model_len"] for model in ask(server, "/v1/models").json["data"]}
        assert listed == {"gpt": 512, "alias": 512, "doubled": None}
        assert ask(server, "/v1/models/doubled").json["id"] == "doubled"
        assert ask(server, "/v1/models/other").error["code"] == "model_not_found"
        assert infer(server, {"inputs": [INPUT]}).status == 200
        assert refusal(infer(server, {"inputs": [INPUT]}, "/v2/models/gpt/infer"), 404)
        for model in ("gpt", "alias"):
            assert ask(server, "/v1/completions", {"model": model, "prompt": "a"}).json["model"] == "gpt"
        for prompt in ("a", "a" * 20_000):  # read in the server, and by the process for large bodies
            wrong = ask(server, "/v1/completions", {"model": "doubled", "prompt": prompt})
            assert (wrong.status, wrong.error["param"]) == (400, "model")
            assert "/v2/models/doubled/infer" in wrong.error["message"]
    served.close()


def test_two_engines_answer_by_name() -> None:
    first, second = FakeEngine(), FakeEngine()
    second.max_model_len = 40

    with serving(Models({("a",): first, ("b",): second})) as server:  # type: ignore[arg-type, dict-item]
        assert ask(server, "/v1/completions", {"model": "b", "prompt": "x", "max_tokens": 2}).json["model"] == "b"
        assert (len(first.asked), len(second.asked)) == (0, 1)
        assert ask(server, "/v1/completions", {"prompt": "x", "max_tokens": 2}).json["model"] == "a"
        long = {"prompt": list(range(1, 9)) * 2500, "model": "b"}
        assert "takes 40 tokens" in ask(server, "/v1/completions", long).error["message"]
        assert "takes 512 tokens" in ask(server, "/v1/completions", {**long, "model": "a"}).error["message"]
        metrics = ask(server, "/metrics").content.decode()
        for name in ("a", "b"):
            assert f'whet:time_to_first_token_seconds_count{{model_name="{name}"}} 1.0' in metrics
            assert f'whet:num_requests_waiting{{model_name="{name}"}} 3.0' in metrics


def test_a_server_without_artefacts_names_its_language_models() -> None:
    with serving(Models({("docs-gpt",): FakeEngine()})) as server:  # type: ignore[arg-type, dict-item]
        answer = ask(server, "/v2/models/x")
        assert refusal(answer, 404) == (
            "no model of this server speaks the Open Inference Protocol; its language models are at /v1: docs-gpt"
        )
