"""What a server says about itself: models, health, metrics, the page and its figures."""

from collections.abc import Iterator

import pytest
from asking import ask, serving
from fake_engine import FakeEngine
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

import whet
from whet.errors import TargetError
from whet.server.http.app import make_app
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings

ENGINE = FakeEngine()


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(ENGINE, served_names=("fake", "alias/with/slashes")) as server:
        yield server


def test_models(server: HttpServer) -> None:
    models = ask(server, "/v1/models").json
    assert [model["id"] for model in models["data"]] == ["fake", "alias/with/slashes"]
    assert models["data"][0]["max_model_len"] == 512
    assert ask(server, "/v1/models/alias/with/slashes").json == models["data"][1]


def test_another_name_is_served_and_the_first_one_answers(server: HttpServer) -> None:
    answer = ask(server, "/v1/completions", {"model": "alias/with/slashes", "prompt": "Once"})
    assert (answer.status, answer.json["model"]) == (200, "fake")


def test_health_and_version(server: HttpServer) -> None:
    assert (ask(server, "/health").status, ask(server, "/health").json) == (200, {"status": "ok"})
    assert ask(server, "/version").json == {"version": whet.__version__}


def test_requests_before_the_server_is_ready() -> None:
    """Asked in the process: over a port nobody can ask that early."""
    lifecycle = Lifecycle()
    with TestClient(
        make_app(FakeEngine(), Settings(served_names=("fake",)), lifecycle),  # type: ignore[arg-type]
        base_url="http://localhost",
    ) as client:
        for answer in (client.get("/health"), client.post("/v1/completions", json={"prompt": "Once"})):
            assert answer.status_code == 503
            assert answer.json()["error"]["message"].startswith("the model is being loaded")
        lifecycle.ready()
        assert client.get("/health").status_code == 200


def test_the_figures_of_the_page(server: HttpServer) -> None:
    live = ask(server, "/live").json
    assert (live["model"], live["num_waiting"], live["tokens_per_s"], live["max_num_seqs"]) == ("fake", 3, 12.5, 64)
    assert live["request_success"].keys() == {"stop", "length", "abort", "error"}
    assert live["is_demo"] is True
    assert 0 <= live["uptime_s"] < 3600


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/static/style.css", "text/css"),
        ("/static/live.js", "text/javascript"),
        ("/static/uPlot.iife.min.js", "text/javascript"),
    ],
)
def test_the_page(server: HttpServer, path: str, kind: str) -> None:
    answer = ask(server, path)
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["nothing.js", "..%2Ftext.py", "..%2f..%2f__init__.py", "__init__.py", ""])
def test_no_other_file(server: HttpServer, name: str) -> None:
    assert ask(server, f"/static/{name}").status == 404


def samples(server: HttpServer) -> dict[tuple[str, str], float]:
    """Name and what it is of, but for the model: value."""
    text = ask(server, "/metrics").content.decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "fake"
            found[sample.name, ",".join(labels.values())] = sample.value
    return found


def test_metrics(server: HttpServer) -> None:
    ENGINE.reset()
    before = samples(server)
    ask(server, "/v1/completions", {"prompt": "Once", "max_tokens": 5})
    after = samples(server)
    stats = ENGINE.stats()
    for name, value in {
        "num_requests_running": 0,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.25,
        "prompt_tokens_total": stats.prompt_tokens_total,
        "generation_tokens_total": 5,
        "prefix_cache_queries_total": 40,
        "prefix_cache_hits_total": 16,
        "num_preemptions_total": 2,
        "spec_decode_num_draft_tokens_total": 9,
        "spec_decode_num_accepted_tokens_total": 7,
    }.items():
        assert after[f"whet:{name}", ""] == value, name
    assert after["whet:request_success_total", "length"] == 1
    assert after["whet:request_success_total", "abort"] == 0
    for name, count, total in (
        ("time_to_first_token_seconds", 1, 0.02),
        ("inter_token_latency_seconds", 4, 4 * 0.004),
        ("e2e_request_latency_seconds", 1, 0.3),
        ("request_queue_time_seconds", 1, 0.01),
    ):
        key = f"whet:{name}"
        assert after[f"{key}_count", ""] - before[f"{key}_count", ""] == count, name
        assert after[f"{key}_sum", ""] - before[f"{key}_sum", ""] == pytest.approx(total), name
        assert after[f"{key}_bucket", "+Inf"] - before[f"{key}_bucket", "+Inf"] == count


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text;version=abc", "application/openmetrics-text;version=", ";;,;=", "a/b;q=x"]
)
def test_metrics_for_odd_accept_headers(server: HttpServer, accept: str) -> None:
    answer = ask(server, "/metrics", headers={"Accept": accept})
    assert answer.status == 200
    assert b"whet:num_requests_running" in answer.content


def test_two_servers_do_not_share_metrics() -> None:
    with serving(FakeEngine()) as one, serving(FakeEngine()) as other:
        ask(one, "/v1/completions", {"prompt": "Once", "max_tokens": 5})
        made = [samples(server) for server in (one, other)]
    for name, counts in (
        ("generation_tokens_total", [5, 0]),
        ("request_success_total", [1, 0]),
        ("e2e_request_latency_seconds_count", [1, 0]),
    ):
        label = "length" if name == "request_success_total" else ""
        assert [each[f"whet:{name}", label] for each in made] == counts, name


def test_a_server_needs_a_tokenizer() -> None:
    engine = FakeEngine()
    engine.tokenizer = None  # type: ignore[assignment]
    with pytest.raises(TargetError, match=r"tokenizer\.json"):
        make_app(engine, Settings(served_names=("fake",)), Lifecycle())  # type: ignore[arg-type]
