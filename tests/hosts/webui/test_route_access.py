"""Who may use the panel's routes in the stand-in WebUI: every combination of its logins, names and credentials."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ov_backend.ui.access import page_token
from tests.ui.test_auth import basic
from tests.ui.test_route_access import ROUTES, WRONG, ask

TOKEN = {"x-openvino-token": page_token()}
COOKIE = {"cookie": "access-token=abc"}
#: Of Gradio 4, beside one of another server on this machine.
COOKIES = {"cookie": "access-token-x1=old; access-token-unsecure-y2=abc"}


@pytest.fixture
def options(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The WebUI's command line."""
    yield host.shared.cmd_opts
    for name in ("api_auth", "server_name"):
        vars(host.shared.cmd_opts).pop(name, None)
    vars(host.shared).pop("demo", None)


def client(login: bool = False) -> TestClient:
    """A client of an application with the WebUI's attributes, where a login may be asked for."""
    from ov_backend.hosts.webui import routes

    app = FastAPI()
    app.auth = {"anna": "secret"} if login else None  # type: ignore[attr-defined]
    app.tokens = {"abc": "anna"}  # type: ignore[attr-defined]
    routes._add_routes(app)
    return TestClient(app, base_url="http://127.0.0.1:7860", raise_server_exceptions=False)


def code(test_client: TestClient, headers: Any, path: str = "cache") -> int:
    return int(ask(test_client, "GET", path, headers).status_code)


@pytest.mark.parametrize("login,api_auth", [(True, None), (False, "anna:secret"), (True, "anna:secret,berta:x")], ids=str)
def test_every_route_asks_for_a_login(options: SimpleNamespace, login: bool, api_auth: str | None) -> None:
    options.api_auth = api_auth
    test_client = client(login)
    for method, path in ROUTES:
        for headers in WRONG:
            assert ask(test_client, method, path, headers).status_code == 401, (method, path, headers)
    assert code(test_client, TOKEN) == 200
    for cookie in (COOKIE, COOKIES):
        assert code(test_client, cookie) == (200 if login else 401)
    assert code(test_client, basic("anna:secret")) == (200 if api_auth else 401)


def test_without_logins_a_rebound_name_is_refused_and_the_sentence_names_the_setting(options: SimpleNamespace) -> None:
    for method, path in ROUTES:
        for headers in ({"host": "evil.example"}, {"host": "evil.example", **TOKEN}, {"host": "evil.example", **COOKIE}):
            answer = ask(client(), method, path, headers)
            assert answer.status_code == 403
            assert "openvino_allowed_hosts" in answer.json()["error"]


def test_a_page_that_everybody_may_load_gives_nobody_a_login(options: SimpleNamespace) -> None:
    options.api_auth = "anna:secret"
    assert code(client(), {"host": "evil.example", **TOKEN}) == 403
    assert code(client(), {"host": "evil.example", **basic("anna:wrong")}) == 403
    assert code(client(), {"host": "proxy.example", **basic("anna:secret")}) == 200


def test_a_page_behind_a_login_may_have_any_name(options: SimpleNamespace) -> None:
    assert code(client(login=True), {"host": "proxy.example", **TOKEN}) == 200
    assert code(client(login=True), {"host": "proxy.example"}) == 401


def test_names_of_the_command_line_the_share_link_and_the_setting_are_read_per_request(
    host: SimpleNamespace, options: SimpleNamespace
) -> None:
    test_client = client()
    assert code(test_client, {"host": "pc.lan:7860"}) == 403
    options.server_name = "pc.lan"
    assert code(test_client, {"host": "pc.lan:7860"}) == 200
    assert code(test_client, {"host": "abc.gradio.live"}) == 403
    host.shared.demo = SimpleNamespace(share_url="https://abc.gradio.live")
    assert code(test_client, {"host": "abc.gradio.live"}) == 200
    host.shared.demo.share_url = "https://new.gradio.live"
    assert code(test_client, {"host": "abc.gradio.live"}) == 403
    host.shared.opts.openvino_allowed_hosts = "proxy.example, *.my.example"
    assert [code(test_client, {"host": name}) for name in ("proxy.example", "a.my.example", "evil.example")] == [200, 200, 403]
    host.shared.opts.openvino_allowed_hosts = 7
    assert code(test_client, {"host": "proxy.example"}) == 403


def test_the_setting_is_on_the_settings_page(host: SimpleNamespace) -> None:
    from ov_backend.hosts.webui import settings_page

    settings_page.add_settings()
    assert host.shared.opts.data_labels[settings_page.ALLOWED_HOSTS].default == ""
    assert settings_page.ALLOWED_HOSTS in settings_page.HOSTS_ADVICE
    assert host.shared.opts.data_labels[settings_page.ALLOWED_HOSTS].label in settings_page.HOSTS_ADVICE


WRONG_SETTINGS = [("openvino_device", "no device!"), ("openvino_precision", 7), ("openvino_model_caching", "?")]
WRONG_SETTINGS += [("openvino_memory_mb", -1)]


@pytest.mark.parametrize("name,value", WRONG_SETTINGS)
def test_a_setting_that_makes_no_sense_is_reported_with_the_pictures(host: SimpleNamespace, name: str, value: Any) -> None:
    setattr(host.shared.opts, name, value)
    from tests.hosts.webui.conftest import TITLE

    processed = host.processing.generate(TITLE, [], prompt="a cat", steps=1)
    assert "In Settings > OpenVINO, " in processed.comments
    assert len(processed.images) == 1


def test_a_picture_that_sets_a_forbidden_property_is_reported(host: SimpleNamespace) -> None:
    from ov_backend.hosts.webui import callbacks
    from ov_backend.hosts.webui.session import session
    from ov_backend.ui.choices import Choices
    from ov_backend.ui.panel import paste_fields

    fields = paste_fields(list(vars(Choices())), callbacks.report)
    field = 'precision=f32; config_json={"DEVICE_PROPERTIES": "{CPU:{CACHE_DIR:/x}}"}'
    values = [read({"OpenVINO": field}) for _, read in fields]
    assert values[-2] == ""
    messages = [message for message in session.status.snapshot()["messages"] if "CACHE_DIR" in message]
    assert len(messages) == 1
