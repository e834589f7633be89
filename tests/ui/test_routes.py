"""The routes by real HTTP requests: their answers, whom they refuse, how often they may be asked."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from ov_backend.core.errors import SettingsError
from ov_backend.ui import routes
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import MAX_SIZES, parse_asked, parse_precompile
from ov_backend.ui.jobs import Unavailable
from ov_backend.ui.likely import prepared
from ov_backend.ui.snapshot import INTERRUPTED
from tests.ui.conftest import NASTY, Host


def test_the_status_is_json_with_its_messages(client: TestClient, host: Host) -> None:
    host.controller.status.add_message(NASTY)
    answer = client.get("/openvino/status")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["cache-control"] == "no-store"
    status = answer.json()
    assert (status["version"], status["state"], status["messages"]) == (1, "idle", [NASTY])


def test_the_devices_are_listed(client: TestClient) -> None:
    devices = client.get("/openvino/devices").json()["devices"]
    assert "CPU" in [device["name"] for device in devices]
    assert all(set(device) == {"name", "full_name", "precisions", "default_precision"} for device in devices)


def test_the_cache_is_counted_and_cleared(client: TestClient, host: Host) -> None:
    assert client.get("/openvino/cache").json()["entries"] == 0
    host.graphs.put("abc", {"model": b"x" * 100})
    other = host.graphs.folder / "somebody's.txt"
    other.write_text("not ours")
    info = client.get("/openvino/cache").json()
    assert (info["kept"], info["entries"], info["max_bytes"]) == (True, 1, 1 << 30)
    assert 100 < info["bytes"] < 1000
    assert "graphs" not in json.dumps(info), "no path goes out"
    assert client.delete("/openvino/cache").json()["removed"] == 1
    assert client.get("/openvino/cache").json()["entries"] == 0
    assert other.read_text() == "not ours"


def test_one_precompile_runs_at_a_time_and_its_job_is_shown(client: TestClient, host: Host) -> None:
    body = {"sizes": [[64, 128], [128, 64]], "batch": 2, "choices": {"device": "CPU — any", "vae": False}}
    answer = client.post("/openvino/precompile", json=body)
    assert answer.status_code == 202
    second = client.post("/openvino/precompile", json={"sizes": [[64, 64]]})
    assert second.status_code == 409
    assert "running already" in second.json()["error"]
    assert client.get("/openvino/status").json()["state"] == "working"
    host.go.set()
    host.wait()
    time.sleep(routes.FRESH_S)
    job = client.get("/openvino/status").json()["job"]
    assert (job["state"], job["done"], job["result"]) == ("done", 2, prepared(["64x128", "128x64"], 2, Choices(vae=False)))
    assert host.requests == [((64, 128), 2, Choices(vae=False)), ((128, 64), 2, Choices(vae=False))]


def test_a_job_can_be_stopped(client: TestClient, host: Host) -> None:
    client.post("/openvino/precompile", json={"sizes": [[64, 64], [128, 128]]})
    assert client.post("/openvino/interrupt", json={}).status_code == 202
    host.wait()
    assert host.interrupts == 1
    assert host.controller.status.job is not None
    assert (host.controller.status.job.state, host.controller.status.job.text) == ("cancelled", INTERRUPTED)


def test_a_comparison_of_int8_is_another_job_and_has_other_pictures(client: TestClient, host: Host) -> None:
    host.picture = lambda choices: Image.new("RGB", (2, 2))
    assert client.post("/openvino/compare-int8", json={}).status_code == 202
    host.wait()
    served = {name: client.get(f"/openvino/compare/{name}").status_code for name in ("own", "int8", "pytorch", "openvino")}
    assert served == {"own": 200, "int8": 200, "pytorch": 404, "openvino": 404}


def test_both_pictures_of_a_comparison_are_served_and_nothing_else(client: TestClient, host: Host) -> None:
    assert client.get("/openvino/compare/pytorch").status_code == 404
    host.picture = lambda choices: Image.new("RGB", (2, 2), "black" if choices is None else "white")
    client.post("/openvino/compare", json={})
    host.wait()
    for name, level in (("pytorch", 0), ("openvino", 255)):
        answer = client.get(f"/openvino/compare/{name}")
        assert answer.headers["content-type"] == "image/png"
        assert Image.open(io.BytesIO(answer.content)).getpixel((0, 0)) == (level,) * 3
    assert client.get("/openvino/compare/other").status_code == 404
    first = client.get("/openvino/status").json()["job"]["number"]
    client.post("/openvino/compare", json={})
    host.wait()
    time.sleep(routes.FRESH_S)
    assert client.get("/openvino/status").json()["job"]["number"] == first + 1


def test_a_job_that_fails_has_its_error_as_text(client: TestClient, host: Host) -> None:
    assert client.post("/openvino/compare", json={}).status_code == 202
    host.wait()
    job = client.get("/openvino/status").json()["job"]
    assert (job["state"], job["text"]) == ("failed", f"RuntimeError: {NASTY}")


@pytest.mark.parametrize(
    "body",
    [
        "64x64",
        [],
        {},
        {"sizes": []},
        {"sizes": [[64, 64]] * (MAX_SIZES + 1)},
        {"sizes": [[64]]},
        {"sizes": [[60, 64]]},
        {"sizes": [[64, 8192]]},
        {"sizes": [[64.0, 64]]},
        {"sizes": ["64x64"]},
        {"sizes": [[True, 64]]},
        {"sizes": [[64, 64]], "batch": 0},
        {"sizes": [[64, 64]], "batch": 1e9},
        {"sizes": [[4096, 4096]], "batch": 2},
        {"sizes": [[64, 64], [2048, 2048]], "batch": 16},
        {"sizes": [[64, 64]], "path": "/etc/passwd"},
        {"sizes": [[64, 64]], "choices": {"cache_dir": "/etc"}},
        {"sizes": [[64, 64]], "choices": {"config_json": '{"CACHE_DIR": "/etc"}'}},
        {"sizes": [[64, 64]], "choices": {"precision": "f8"}},
        {"sizes": [[64, 64]], "choices": ["CPU"]},
    ],
)
def test_a_body_that_makes_no_sense_is_refused_with_one_sentence(client: TestClient, host: Host, body: Any) -> None:
    answer = client.post("/openvino/precompile", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"].endswith((".", "}."))
    assert host.requests == []
    with pytest.raises(SettingsError):
        parse_precompile(body)


def test_a_changed_size_is_passed_on_and_starts_no_job(client: TestClient, host: Host) -> None:
    host.controller.readiness.size_changed = host.requests.append
    answer = client.post("/openvino/ready", json={"size": [64, 128], "batch": 2, "from_picture": True})
    assert (answer.status_code, set(answer.json())) == (202, {"version"})
    assert host.requests == [(64, 128, 2, True)]
    assert not host.controller.status.busy


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"size": 64},
        {"size": [60, 64]},
        {"size": [64]},
        {"size": ["64", "64"]},
        {"size": [64, 64], "batch": 0},
        {"size": [64, 64], "batch": True},
        {"size": [64, 64], "batch": None},
        {"size": [4096, 4096], "batch": 2},
        {"size": [64, 64], "from_picture": 1},
        {"size": [64, 64], "path": "/etc/passwd"},
    ],
)
def test_a_changed_size_that_makes_no_sense_is_refused_with_one_sentence(client: TestClient, host: Host, body: Any) -> None:
    host.controller.readiness.size_changed = host.requests.append
    answer = client.post("/openvino/ready", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"].endswith((".", "}."))
    assert host.requests == []
    with pytest.raises(SettingsError):
        parse_asked(body)


def test_a_body_that_is_not_small_json_is_refused(client: TestClient, host: Host) -> None:
    form = {"content-type": "text/plain"}
    assert client.post("/openvino/precompile", content=b'{"sizes": [[64, 64]]}', headers=form).status_code == 415
    json_type = {"content-type": "application/json"}
    assert client.post("/openvino/precompile", content=b"{", headers=json_type).status_code == 422
    assert client.post("/openvino/precompile", content=b"[" * 16000, headers=json_type).status_code == 422
    assert client.post("/openvino/precompile", content=b" " * 20000, headers=json_type).status_code == 413
    assert host.requests == []


EXAMPLES = {"precompile": '{"sizes": [[', "ready": '{"size": [', "compare": '{"choices": {', "compare-int8": '{"choices": {'}


@pytest.mark.parametrize("path,example", EXAMPLES.items())
def test_a_body_that_is_not_json_is_told_what_this_route_takes(client: TestClient, host: Host, path: str, example: str) -> None:
    answer = client.post(f"/openvino/{path}", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 422
    sentence = answer.json()["error"]
    assert sentence.startswith(f"The request's body is not JSON; send an object such as {example}")
    host.controller.readiness.size_changed = host.requests.append
    advised = json.loads(sentence.partition("such as ")[2].removesuffix("."))
    assert client.post(f"/openvino/{path}", json=advised).status_code == 202, "what it advises is taken"
    host.go.set()
    host.wait()


def test_a_client_that_goes_away_within_a_body_is_no_error(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    routes.add_routes(app, host.controller)
    headers = [(b"host", b"localhost:7860"), (b"content-type", b"application/json"), (b"content-length", b"100")]
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/openvino/precompile", "headers": headers}
    messages = [{"type": "http.request", "body": b'{"sizes": ', "more_body": True}, {"type": "http.disconnect"}]
    sent = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    with caplog.at_level(logging.DEBUG, "ov_backend"):
        asyncio.run(app({**scope, "query_string": b"", "root_path": "", "scheme": "http"}, receive, send))  # type: ignore[arg-type]
    assert {record.levelno for record in caplog.records if record.name.startswith("ov_backend")} == {logging.DEBUG}
    assert not any(record.exc_info for record in caplog.records)
    assert sent[0]["status"] == 400
    assert host.requests == []


def test_many_pollers_share_a_bounded_rate(host: Host) -> None:
    now = [0.0]
    throttled = routes._ThrottledStatus(host.controller, lambda: now[0])
    assert [throttled.seconds_to_wait() for _ in range(100)] == [0.0] * 100, "nothing runs: nobody waits"
    host.controller.status.begin("512x512", 4)
    waits = [throttled.seconds_to_wait() for _ in range(200)]
    assert waits[0] == 0.0
    assert waits[25] == pytest.approx(25 / routes.RATE)
    assert max(waits) <= routes.LONGEST_WAIT_S
    now[0] += 60
    assert throttled.seconds_to_wait() == 0.0, "a single poller never waits"
    now[0] += 0.4
    assert throttled.seconds_to_wait() == 0.0


def test_a_snapshot_is_sent_again_for_a_moment(host: Host) -> None:
    now = [0.0]
    throttled = routes._ThrottledStatus(host.controller, lambda: now[0])
    first = throttled.as_json()
    host.controller.status.add_message("news")
    assert throttled.as_json() is first
    now[0] += routes.FRESH_S + 0.01
    assert b"news" in throttled.as_json()


def test_devices_without_openvino_are_unavailable(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    from ov_backend.core import devices

    def broken() -> list[Any]:
        raise ImportError("libopenvino.so: not found")

    monkeypatch.setattr(devices, "list_devices", broken)
    with pytest.raises(Unavailable, match="pip install openvino"):
        host.controller.devices()
