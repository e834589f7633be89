"""Every route with every kind of credentials, name and header that is wrong: nobody gets in, and each refusal is a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ov_backend.ui import routes
from ov_backend.ui.access import KnownHosts, has_password, page_token
from tests.ui.conftest import OWN_ADDRESS, Host
from tests.ui.test_auth import basic

ROUTES = [("GET", "status"), ("GET", "devices"), ("GET", "cache"), ("DELETE", "cache"), ("POST", "precompile")]
ROUTES += [("POST", "compare"), ("POST", "interrupt"), ("GET", "compare/pytorch"), ("GET", "compare/openvino")]
ROUTES += [("POST", "ready"), ("POST", "compare-int8"), ("GET", "compare/own"), ("GET", "compare/int8")]
PASSWORDS = {"anna": "secret", "é": "ü"}
RIGHT = [basic("anna:secret"), basic("é:ü"), {"x-openvino-token": page_token()}]
WRONG: list[dict[str, str | bytes]] = [
    {},
    *map(basic, ("anna:wrong", "anna:", "anna", ":secret", "", "berta:secret", "anna:secret ", "ANNA:secret", "\x00:\x00", "é:")),
    {"authorization": ""},
    {"authorization": "Basic"},
    {"authorization": "Basic !"},
    {"authorization": "Basic é".encode("latin-1")},
    {"authorization": b"Basic \xff\xfe"},
    {"authorization": b"\xff"},
    {"authorization": "Basic " + "A" * 8000},
    {"authorization": "Basic /////w=="},
    {"authorization": "Bearer " + page_token()},
    {"authorization": "Digest anna:secret"},
    {"x-openvino-token": ""},
    {"x-openvino-token": page_token()[:-1]},
    {"x-openvino-token": page_token() + " x"},
    {"x-openvino-token": "é".encode()},
    {"cookie": f"access-token={page_token()}"},
    {"cookie": b"\xff\xfe=\xff;;;="},
]
BODIES: dict[str, Any] = {"precompile": {"sizes": [[64, 64]]}, "ready": {"size": [64, 64]}}


@pytest.fixture
def guarded(tmp_path: Path) -> tuple[TestClient, Host]:
    """The routes behind a login; a page may be loaded without one, under a known name only."""
    host, app = Host(tmp_path / "graphs"), FastAPI()
    host.controller.pictures = dict.fromkeys(("pytorch", "openvino", "own", "int8"), b"picture")
    host.controller.readiness.size_changed = lambda asked: None
    names = KnownHosts(lambda: ["my.example"], "put it into the setting", lambda request: not _logged_in(request))
    routes.add_routes(app, host.controller, _logged_in, names)
    return TestClient(app, base_url=OWN_ADDRESS, raise_server_exceptions=False), host


def _logged_in(request: Any) -> bool:
    return has_password(request.headers, PASSWORDS)


def ask(client: TestClient, method: str, path: str, headers: Any) -> Any:
    body = {"json": BODIES.get(path, {})} if method == "POST" else {}
    return client.request(method, f"/openvino/{path}", headers=list(headers.items()), **body)


@pytest.mark.parametrize("method,path", ROUTES)
def test_wrong_credentials_are_401_and_change_nothing(guarded: tuple[TestClient, Host], method: str, path: str) -> None:
    client, host = guarded
    host.graphs.put("abc", {"model": b"x"})
    for headers in WRONG:
        answer = ask(client, method, path, headers)
        assert (answer.status_code, "Log in first" in answer.json()["error"]) == (401, True), headers
    assert (len(host.graphs.entries()), host.requests, host.interrupts) == (1, [], 0)


@pytest.mark.parametrize("method,path", ROUTES)
def test_right_credentials_are_let_in(guarded: tuple[TestClient, Host], method: str, path: str) -> None:
    client, host = guarded
    for headers in RIGHT:
        assert ask(client, method, path, headers).status_code in (200, 202), headers
        host.go.set()
        host.wait()


NAMES = ["evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.nip.io", "my.example.evil"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method,path", ROUTES)
def test_a_rebound_name_is_403_with_the_token_too(guarded: tuple[TestClient, Host], method: str, path: str, name: str) -> None:
    client, host = guarded
    own = {"host": name, "origin": f"http://{name}", "x-openvino-token": page_token()}
    for headers in (own, {**own, "sec-fetch-site": "same-origin"}, {**own, "x-forwarded-host": "localhost"}):
        answer = ask(client, method, path, headers)
        assert answer.status_code == 403
        assert "put it into the setting" in answer.json()["error"]
    assert (host.requests, host.interrupts) == ([], 0)


@pytest.mark.parametrize("name", ["my.example", "MY.example:443", "192.168.0.7:7860", "[::1]:7860", "localhost"])
def test_a_known_name_is_let_in(guarded: tuple[TestClient, Host], name: str) -> None:
    headers = {"host": name, "origin": f"http://{name}", "x-openvino-token": page_token()}
    assert ask(guarded[0], "DELETE", "cache", headers).status_code == 200


def test_a_login_needs_no_known_name(guarded: tuple[TestClient, Host]) -> None:
    assert ask(guarded[0], "GET", "cache", {"host": "behind.a.proxy", **RIGHT[0]}).status_code == 200


MALFORMED_HOSTS = ["", "é.example".encode(), b"\xff", "a b", "[::1", "evil@localhost", "<script>", "a" * 9000]


@pytest.mark.parametrize("host_header", MALFORMED_HOSTS)
@pytest.mark.parametrize("method,path", ROUTES)
def test_a_malformed_host_is_400(guarded: tuple[TestClient, Host], method: str, path: str, host_header: str | bytes) -> None:
    answer = ask(guarded[0], method, path, {"host": host_header, **RIGHT[2]})
    assert answer.status_code == 400
    assert "Host header" in answer.json()["error"]


MALFORMED_ORIGINS = ["http://[", "http://[::1", "é".encode(), b"\xff", "http://\x7f", "//", "null", "http://localhost:x"]


@pytest.mark.parametrize("origin", MALFORMED_ORIGINS)
@pytest.mark.parametrize("method,path", [route for route in ROUTES if route[0] != "GET"])
def test_a_malformed_origin_is_another_origin(guarded: tuple[TestClient, Host], method: str, path: str, origin: Any) -> None:
    assert ask(guarded[0], method, path, {"origin": origin, **RIGHT[2]}).status_code == 403


def test_without_a_login_a_rebound_name_is_refused_by_default(tmp_path: Path) -> None:
    app = FastAPI()
    routes.add_routes(app, Host(tmp_path).controller)
    for method, path in ROUTES:
        answer = ask(TestClient(app, base_url="http://evil.example"), method, path, {})
        assert answer.status_code == 403
        assert "this machine's address" in answer.json()["error"]


def test_requests_are_bounded_in_rate(guarded: tuple[TestClient, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [ask(guarded[0], "GET", "cache", RIGHT[0]).status_code for _ in range(routes.BURST * 4)]
    assert set(codes) == {200, 429}
    assert codes[: routes.BURST // 2] == [200] * (routes.BURST // 2)


def test_a_bucket_fills_again() -> None:
    now = [0.0]
    bucket = routes._Bucket(lambda: now[0])
    assert [bucket.take() for _ in range(routes.BURST + 1)] == [True] * routes.BURST + [False]
    now[0] += 1 / routes.REFILL
    assert [bucket.take(), bucket.take()] == [True, False]
    now[0] += 1e6
    assert sum(bucket.take() for _ in range(1000)) == routes.BURST


def test_waiting_pages_are_bounded(guarded: tuple[TestClient, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_WAITING", 0)
    answer = ask(guarded[0], "GET", "status", RIGHT[0])
    assert (answer.status_code, "close some" in answer.json()["error"]) == (429, True)


def test_a_body_that_never_ends_is_408(guarded: tuple[TestClient, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def never(request: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    monkeypatch.setattr(routes, "_bytes", never)
    monkeypatch.setattr(routes, "_BODY_TIMEOUT_S", 0.01)
    assert ask(guarded[0], "POST", "compare", RIGHT[0]).status_code == 408


def test_a_failure_of_ours_is_500_and_a_sentence(guarded: tuple[TestClient, Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded[1].graphs, "entries", lambda: 1 / 0)
    answer = ask(guarded[0], "GET", "cache", RIGHT[0])
    assert (answer.status_code, answer.json()["error"]) == (500, "The server failed (ZeroDivisionError); its log says more.")


WRONG_BODIES = [[], "x", 7, {"path": "/etc"}, {"choices": []}, {"choices": {"x": 1}}, {"choices": {"unet": "?"}}]


@pytest.mark.parametrize("body", WRONG_BODIES)
def test_a_comparison_takes_nothing_but_choices(guarded: tuple[TestClient, Host], body: Any) -> None:
    answer = guarded[0].post("/openvino/compare", json=body, headers=RIGHT[0])
    assert answer.status_code == 422
    assert answer.json()["error"].endswith(".")
    assert "is used instead" not in answer.json()["error"]


FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "http://localhost.evil.example"},
    {"origin": "http://localhost:81"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "origin": "http://localhost:7860"},
]
OWN = [
    {},
    {"origin": "http://localhost:7860"},
    {"sec-fetch-site": "same-origin", "origin": "https://behind.a.proxy"},
    {"origin": "https://shown.example", "x-forwarded-host": "shown.example"},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("method,path", [("DELETE", "cache"), ("POST", "precompile"), ("POST", "compare"), ("POST", "interrupt")])
def test_another_origin_changes_nothing(
    client: TestClient, host: Host, headers: dict[str, str], method: str, path: str
) -> None:
    host.graphs.put("abc", {"model": b"x"})
    answer = client.request(method, f"/openvino/{path}", json={"sizes": [[64, 64]]}, headers=headers)
    assert answer.status_code == 403
    assert "another origin" in answer.json()["error"]
    assert (len(host.graphs.entries()), host.requests, host.interrupts) == (1, [], 0)


@pytest.mark.parametrize("headers", OWN)
def test_our_own_page_and_programs_are_admitted(client: TestClient, host: Host, headers: dict[str, str]) -> None:
    assert client.delete("/openvino/cache", headers=headers).status_code == 200


def test_the_host_decides_who_may_ask(host: Host) -> None:
    app = FastAPI()
    routes.add_routes(app, host.controller, lambda request: has_password(request.headers, {"anna": "secret"}))
    client = TestClient(app)
    requests = [("GET", "status"), ("GET", "devices"), ("GET", "cache"), ("DELETE", "cache"), ("POST", "interrupt")]
    for method, path in requests:
        assert client.request(method, f"/openvino/{path}").status_code == 401
        assert client.request(method, f"/openvino/{path}", headers=basic("anna:wrong")).status_code == 401
        assert client.request(method, f"/openvino/{path}", headers=basic("anna:secret")).status_code < 300
        assert client.request(method, f"/openvino/{path}", headers={"x-openvino-token": page_token()}).status_code < 300
