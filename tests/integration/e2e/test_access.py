"""The panel's routes in a real WebUI with logins: every route, without and with wrong credentials, and under other names."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.e2e.client import WebUI, started
from tests.ui.test_auth import basic

ROUTES = [("GET", "status"), ("GET", "devices"), ("GET", "cache"), ("DELETE", "cache"), ("POST", "precompile")]
ROUTES += [("POST", "compare"), ("POST", "interrupt")]
WRONG = [{}, basic("anna:wrong"), basic("berta:secret"), basic(""), {"Authorization": "Basic é"}, {"Authorization": "Basic"}]
WRONG += [{"Authorization": "Bearer x"}, {"Cookie": "access-token=x"}, {"X-OpenVINO-Token": "x"}, {"X-OpenVINO-Token": "é"}]
LOGINS = {
    "both": ("--gradio-auth", "anna:secret", "--api-auth", "api:word"),
    "page": ("--gradio-auth", "anna:secret"),
    "api": ("--api-auth", "api:word"),
    "none": (),
}


@pytest.fixture(scope="module", params=LOGINS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, WebUI]]:
    """A WebUI of its own for each combination of logins."""
    if not os.environ.get("WEBUI_DIR"):
        pytest.skip("a WebUI has to be started with its logins: set WEBUI_DIR and WEBUI_PYTHON")
    name = str(request.param)
    folder = tmp_path_factory.mktemp(f"webui-{name}")
    with started(Path(os.environ["WEBUI_DIR"]), os.environ["WEBUI_PYTHON"], folder, *LOGINS[name]) as webui:
        yield name, webui


def code(webui: WebUI, method: str, path: str, headers: dict[str, str]) -> int:
    """The status of one answer; headers are sent as bytes, so that any can be."""
    address = urlsplit(webui.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    connection.putrequest(method, f"/openvino/{path}", skip_host="Host" in headers)
    body = b"{}" if method == "POST" else b""
    for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
        connection.putheader(name, value.encode("latin-1"))
    connection.endheaders(body)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_every_route_refuses_wrong_credentials(guarded: tuple[str, WebUI]) -> None:
    name, webui = guarded
    for method, path in ROUTES:
        for headers in WRONG:
            got = code(webui, method, path, headers)
            assert got == 401 if name != "none" else got < 500, (method, path, headers, got)


def test_the_right_password_is_let_in(guarded: tuple[str, WebUI]) -> None:
    name, webui = guarded
    assert code(webui, "GET", "cache", basic("api:word")) == (401 if name == "page" else 200)


def test_a_rebound_name_is_refused_where_the_page_is_open(guarded: tuple[str, WebUI]) -> None:
    name, webui = guarded
    for method, path in ROUTES:
        got = code(webui, method, path, {"Host": "evil.example:7860"})
        assert got == (403 if name in ("none", "api") else 401), (method, path, got)
