"""What the server says of itself, and how it answers while the engine cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparkstral.api.metrics import ALIASES
from sparkstral.api.openai_chat.schema import ChatCompletionRequest
from sparkstral.config import ServerConfig
from sparkstral.types import EnginePhase, EngineStatus
from tests.api.conftest import MODEL, Doors

BODY = {"messages": [{"role": "user", "content": "Say hello."}]}


def test_the_model_and_its_true_length(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.max_model_len = 12_345
    sdk = doors.sdk(engine)
    (model,) = sdk.models.list()
    assert model.id == MODEL
    assert model.max_model_len == 12_345  # type: ignore[attr-defined]
    assert sdk.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError, match=MODEL):
        sdk.models.retrieve("other/model")


@pytest.mark.parametrize("path", ["/health", "/readyz", "/livez", "/startupz"])
def test_health_may_be_asked_without_a_body(doors: Doors, path: str) -> None:
    url = doors.url(doors.engine("Hi", "</s>"))
    head, get = httpx.head(url + path), httpx.get(url + path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


def test_the_engine_lives_as_long_as_the_application(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    url = doors.url(engine)
    assert httpx.get(f"{url}/health").status_code == 200
    assert (engine.num_started, engine.num_stopped) == (1, 0)
    doors.close()
    assert (engine.num_started, engine.num_stopped) == (1, 1)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            EngineStatus(EnginePhase.LOADING, 0.42, "12.0 of 28.6 MiB."),
            ["loading", "42%", "12.0 of 28.6 MiB"],
        ),
        (EngineStatus(EnginePhase.DRAINING), ["draining"]),
        (
            EngineStatus(EnginePhase.DEAD, detail="The engine process was killed."),
            ["dead", "was killed", "Restart"],
        ),
    ],
)
def test_until_the_engine_is_ready_everything_says_why(
    doors: Doors, status: EngineStatus, words: list[str]
) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.now = status
    url = doors.url(engine)
    assert httpx.get(f"{url}/livez").status_code == 200
    assert "sparkstral_ready 0.0" in httpx.get(f"{url}/metrics").text
    for path in ("/health", "/readyz", "/startupz"):
        health = httpx.get(url + path)
        assert health.status_code == (200 if path == "/startupz" and status.phase is EnginePhase.DRAINING else 503)
        if health.status_code == 200:
            continue
        expected = {"status": "unavailable", "phase": status.phase.value, "progress": status.progress}
        assert expected.items() <= health.json().items()
        assert health.json()["detail"] == status.detail
    for stream in (False, True):
        answer = httpx.post(f"{url}/v1/chat/completions", json={**BODY, "stream": stream})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["code"] == "engine_not_ready"
        assert all(word in answer.json()["error"]["message"] for word in words)
    assert httpx.get(f"{url}/v1/models").status_code == 503
    engine.now = EngineStatus(EnginePhase.READY, 1.0)
    health = httpx.get(f"{url}/health").json()
    assert health["status"] == "ok"
    assert health["info"]["max_model_len"] == engine.max_model_len
    assert health["stats"]["num_running"] == engine.stats().num_running
    assert httpx.post(f"{url}/v1/chat/completions", json=BODY).status_code == 200


def test_a_start_says_when_it_may_be_over(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    url = doors.url(engine)
    for progress, eta_s in [(0.0, None), (0.75, 10.0)]:
        engine.now = EngineStatus(EnginePhase.LOADING, progress)
        answer = httpx.get(f"{url}/startupz").json()
        assert (answer["phase"], answer["phase_s"], answer["eta_s"]) == ("loading", 30.0, eta_s)


@pytest.mark.parametrize("phase", [EnginePhase.STALLED, EnginePhase.SHORT_OF_MEMORY, EnginePhase.RESTARTING])
def test_an_engine_that_was_ready_and_is_not_refuses_with_the_reason(doors: Doors, phase: EnginePhase) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.now = EngineStatus(phase, detail="No word from it.")
    url = doors.url(engine)
    assert httpx.get(f"{url}/readyz").status_code == 503
    assert httpx.get(f"{url}/startupz").status_code == (503 if phase is EnginePhase.RESTARTING else 200)
    refused = httpx.post(f"{url}/v1/chat/completions", json=BODY)
    assert refused.status_code == 503
    assert "No word from it" in refused.json()["error"]["message"]


def test_metrics_count_requests_tokens_and_times_under_both_names(doors: Doors) -> None:
    engine = doors.engine("one two three", "</s>")
    url = doors.url(engine)
    for _ in range(3):
        httpx.post(f"{url}/v1/chat/completions", json=BODY)
    for step, seconds in [(1, 0.004), (1, 0.004), (2, 0.25)]:
        engine.step_observers[0](replace(engine.stats(), step=step, last_step_s=seconds))
    text = httpx.get(f"{url}/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert not any(name.endswith("_created") for name in families)

    def value(family: str, sample: str, **labels: str) -> float:
        (found,) = (s for s in families[family].samples if s.name == sample and labels.items() <= s.labels.items())
        return found.value

    assert value("sparkstral_requests", "sparkstral_requests_total", outcome="stop") == 3
    assert value("sparkstral_request_seconds", "sparkstral_request_seconds_count") == 3
    assert value("sparkstral_step_seconds", "sparkstral_step_seconds_count") == 2
    assert value("sparkstral_step_seconds", "sparkstral_step_seconds_bucket", le="0.005") == 1
    assert value("sparkstral_ready", "sparkstral_ready") == 1
    for name in ALIASES.values():
        labels = {"model_name": MODEL, "engine": "0"}
        assert all(labels.items() <= sample.labels.items() for sample in families[f"vllm:{name}"].samples)
    first, e2e = "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"
    assert value(first, f"{first}_count") == value(e2e, f"{e2e}_bucket", le="+Inf") == 3
    assert families["vllm:generation_tokens"].type == "counter"


def test_a_full_server_says_when_to_come_back(doors: Doors) -> None:
    engine = doors.engine("Hi", "</s>")
    engine.hang_after = 1
    url = doors.url(engine, ServerConfig(max_in_flight=1))
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**BODY, "stream": True}) as first:
        events = first.iter_text()
        next(events)
        for stream in (False, True):
            answer = httpx.post(f"{url}/v1/chat/completions", json={**BODY, "stream": stream})
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["error"]["code"] == "overloaded"
    assert engine.has_aborted.wait(30)
    engine.hang_after = None
    assert httpx.post(f"{url}/v1/chat/completions", json=BODY).status_code == 200


def test_the_documentation_lists_the_fields(doors: Doors) -> None:
    document = httpx.get(f"{doors.url(doors.engine('Hi'))}/openapi.json").json()
    assert set(document["paths"]) >= {
        "/health", "/readyz", "/startupz", "/livez", "/metrics",
        "/v1/models", "/v1/models/{model}", "/v1/chat/completions",
        "/v1/messages", "/v1/messages/count_tokens",
    }  # fmt: skip
    fields = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert {"messages", "tools", "max_tokens"} <= set(fields)
    assert "not supported" in fields["guided_json"]["description"].lower()
    assert "ignored" in fields["user"]["description"].lower()


def test_the_written_documentation_names_every_field() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    missing = [name for name in ChatCompletionRequest.model_fields if f"`{name}`" not in text]
    assert missing == []
