"""The routes over real HTTP requests: what they answer, whom they refuse, how often they may be asked."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ov_backend.cache.store import GraphStore
from ov_backend.errors import SettingsError
from ov_backend.ui import routes
from ov_backend.ui.auth import has_page_token, has_password, page_token, same_origin
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import MAX_SIZES, Control, Controller, Unavailable, parse_precompile
from ov_backend.ui.status import Status

NASTY = "<img src=x onerror=alert(1)>"


class Host:
    """A controller whose jobs wait until they are told to go on."""

    def __init__(self, folder: Path) -> None:
        self.store = GraphStore(folder)
        self.go, self.asked, self.interrupted = threading.Event(), [], 0
        self.controller = Controller(Status(), lambda: self.store, self.precompile, self.compare, self.interrupt)

    def precompile(self, sizes: Any, batch: int, choices: Choices | None, control: Control) -> None:
        self.asked.append((list(sizes), batch, choices))
        for done, (width, height) in enumerate(sizes):
            control.step(done, f"Preparing {width}x{height}")
            self.go.wait(10)
        control.step(len(sizes), "")

    def compare(self, choices: Choices | None, control: Control) -> dict[str, Any]:
        raise RuntimeError(NASTY)

    def interrupt(self) -> None:
        self.interrupted += 1
        self.go.set()

    def wait(self) -> None:
        deadline = time.monotonic() + 10
        while self.controller.status.busy:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "graphs")


@pytest.fixture
def client(host: Host) -> Iterator[TestClient]:
    app = FastAPI()
    routes.add_routes(app, host.controller)
    with TestClient(app) as made:
        yield made


def test_status(client: TestClient, host: Host) -> None:
    host.controller.status.say(NASTY)
    answer = client.get("/openvino/status")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["cache-control"] == "no-store"
    found = answer.json()
    assert (found["version"], found["state"], found["messages"]) == (1, "idle", [NASTY])


def test_devices(client: TestClient) -> None:
    found = client.get("/openvino/devices").json()["devices"]
    assert "CPU" in [device["name"] for device in found]
    assert all(set(device) == {"name", "full_name", "precisions", "default_precision"} for device in found)


def test_the_cache_is_counted_and_cleared(client: TestClient, host: Host) -> None:
    assert client.get("/openvino/cache").json()["entries"] == 0
    host.store.put("abc", {"model": b"x" * 100})
    other = host.store.folder / "somebody's.txt"
    other.write_text("not ours")
    info = client.get("/openvino/cache").json()
    assert (info["kept"], info["entries"], info["max_bytes"]) == (True, 1, 1 << 30)
    assert 100 < info["bytes"] < 1000
    assert "graphs" not in json.dumps(info), "no path goes out"
    assert client.delete("/openvino/cache").json()["removed"] == 1
    assert client.get("/openvino/cache").json()["entries"] == 0
    assert other.read_text() == "not ours"


def test_precompile_runs_once_at_a_time_and_is_seen(client: TestClient, host: Host) -> None:
    body = {"sizes": [[64, 128], [128, 64]], "batch": 2, "choices": {"device": "CPU — any", "vae": False}}
    answer = client.post("/openvino/precompile", json=body)
    assert answer.status_code == 202
    again = client.post("/openvino/precompile", json={"sizes": [[64, 64]]})
    assert again.status_code == 409
    assert "running already" in again.json()["error"]
    assert client.get("/openvino/status").json()["state"] == "working"
    host.go.set()
    host.wait()
    time.sleep(routes.FRESH_S)
    job = client.get("/openvino/status").json()["job"]
    assert (job["state"], job["done"], job["result"]) == ("done", 2, {"sizes": ["64x128", "128x64"], "batch": 2})
    assert host.asked == [([(64, 128), (128, 64)], 2, Choices(vae=False))]


def test_a_job_can_be_stopped(client: TestClient, host: Host) -> None:
    client.post("/openvino/precompile", json={"sizes": [[64, 64], [128, 128]]})
    assert client.post("/openvino/interrupt", json={}).status_code == 202
    host.wait()
    assert host.interrupted == 1
    assert host.controller.status.job is not None
    assert host.controller.status.job.state == "cancelled"


def test_a_job_that_fails_is_over_and_says_why(client: TestClient, host: Host) -> None:
    assert client.post("/openvino/compare", json={}).status_code == 202
    host.wait()
    job = client.get("/openvino/status").json()["job"]
    assert (job["state"], job["text"]) == ("failed", f"RuntimeError: {NASTY}")


def test_what_a_host_cannot_do_is_said() -> None:
    app = FastAPI()
    routes.add_routes(app, Controller(Status()))
    client = TestClient(app)
    assert client.get("/openvino/cache").json()["kept"] is False
    for path, body in (("precompile", {"sizes": [[64, 64]]}), ("compare", {})):
        answer = client.post(f"/openvino/{path}", json=body)
        assert answer.status_code == 409
        assert "no model is loaded" in answer.json()["error"]


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
        {"sizes": [[64, 64]], "path": "/etc/passwd"},
        {"sizes": [[64, 64]], "choices": {"cache_dir": "/etc"}},
        {"sizes": [[64, 64]], "choices": {"config_json": '{"CACHE_DIR": "/etc"}'}},
        {"sizes": [[64, 64]], "choices": {"precision": "f8"}},
        {"sizes": [[64, 64]], "choices": ["CPU"]},
    ],
)
def test_nonsense_is_refused_in_a_sentence(client: TestClient, host: Host, body: Any) -> None:
    answer = client.post("/openvino/precompile", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"].endswith((".", "}."))
    assert host.asked == []
    with pytest.raises(SettingsError):
        parse_precompile(body)


def test_other_bodies_are_refused(client: TestClient, host: Host) -> None:
    form = {"content-type": "text/plain"}
    assert client.post("/openvino/precompile", content=b'{"sizes": [[64, 64]]}', headers=form).status_code == 415
    typed = {"content-type": "application/json"}
    assert client.post("/openvino/precompile", content=b"{", headers=typed).status_code == 422
    assert client.post("/openvino/precompile", content=b"[" * 16000, headers=typed).status_code == 422
    assert client.post("/openvino/precompile", content=b" " * 20000, headers=typed).status_code == 413
    assert host.asked == []


FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "http://testserver.evil.example"},
    {"origin": "http://testserver:81"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "origin": "http://testserver"},
]
OWN = [
    {},
    {"origin": "http://testserver"},
    {"sec-fetch-site": "same-origin", "origin": "https://behind.a.proxy"},
    {"origin": "https://shown.example", "x-forwarded-host": "shown.example"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("method,path", [("DELETE", "cache"), ("POST", "precompile"), ("POST", "compare"), ("POST", "interrupt")])
def test_another_origin_changes_nothing(
    client: TestClient, host: Host, headers: dict[str, str], method: str, path: str
) -> None:
    host.store.put("abc", {"model": b"x"})
    answer = client.request(method, f"/openvino/{path}", json={"sizes": [[64, 64]]}, headers=headers)
    assert answer.status_code == 403
    assert "another origin" in answer.json()["error"]
    assert (len(host.store.entries()), host.asked, host.interrupted) == (1, [], 0)


@pytest.mark.parametrize("headers", OWN)
def test_our_own_page_and_programs_may(client: TestClient, host: Host, headers: dict[str, str]) -> None:
    assert client.delete("/openvino/cache", headers=headers).status_code == 200


def test_without_a_header_of_a_page_nothing_is_a_token() -> None:
    assert not has_page_token({})
    assert not has_page_token({"x-openvino-token": ""})
    assert not has_page_token({"x-openvino-token": "é"})
    assert has_page_token({"x-openvino-token": page_token()})


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def test_passwords() -> None:
    known = {"anna": "pass:word", "empty": ""}
    assert has_password(basic("anna:pass:word"), known)
    wrong_ones = [*map(basic, ("anna:pass", "berta:", "anna", "")), {}, {"authorization": "Basic !"}, {"authorization": "x"}]
    for wrong in wrong_ones:
        assert not has_password(wrong, known)


def test_the_host_decides_who_may_ask(host: Host) -> None:
    app = FastAPI()
    routes.add_routes(app, host.controller, lambda request: has_password(request.headers, {"anna": "secret"}))
    client = TestClient(app)
    every = [("GET", "status"), ("GET", "devices"), ("GET", "cache"), ("DELETE", "cache"), ("POST", "interrupt")]
    for method, path in every:
        assert client.request(method, f"/openvino/{path}").status_code == 401
        assert client.request(method, f"/openvino/{path}", headers=basic("anna:wrong")).status_code == 401
        assert client.request(method, f"/openvino/{path}", headers=basic("anna:secret")).status_code < 300
        assert client.request(method, f"/openvino/{path}", headers={"x-openvino-token": page_token()}).status_code < 300


def test_same_origin_needs_the_port_too() -> None:
    assert same_origin({"host": "localhost:7860", "origin": "http://localhost:7860"})
    assert not same_origin({"host": "localhost:7860", "origin": "http://localhost:7861"})


def test_many_pollers_share_a_bounded_rate(host: Host) -> None:
    now = [0.0]
    board = routes._Board(host.controller, lambda: now[0])
    assert [board.wait() for _ in range(100)] == [0.0] * 100, "nothing runs: nobody waits"
    host.controller.status.begin("512x512", 4)
    waits = [board.wait() for _ in range(200)]
    assert waits[0] == 0.0
    assert waits[25] == pytest.approx(25 / routes.RATE)
    assert max(waits) <= routes.LONGEST_WAIT_S
    now[0] += 60
    assert board.wait() == 0.0, "a single poller never waits"
    now[0] += 0.4
    assert board.wait() == 0.0


def test_a_snapshot_serves_many_for_a_moment(host: Host) -> None:
    now = [0.0]
    board = routes._Board(host.controller, lambda: now[0])
    first = board.bytes()
    host.controller.status.say("news")
    assert board.bytes() is first
    now[0] += routes.FRESH_S + 0.01
    assert b"news" in board.bytes()


def test_a_controller_without_openvino_says_so(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    from ov_backend import devices

    def broken() -> list[Any]:
        raise ImportError("libopenvino.so: not found")

    monkeypatch.setattr(devices, "list_devices", broken)
    with pytest.raises(Unavailable, match="pip install openvino"):
        host.controller.devices()
