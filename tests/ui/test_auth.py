"""Who may use the routes: tokens, passwords, origins."""

from __future__ import annotations

import base64

from ov_backend.ui.access import has_page_token, has_password, page_token, same_origin


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def test_only_the_page_token_is_a_token() -> None:
    assert not has_page_token({})
    assert not has_page_token({"x-openvino-token": ""})
    assert not has_page_token({"x-openvino-token": "é"})
    assert has_page_token({"x-openvino-token": page_token()})


def test_only_the_right_password_is_accepted() -> None:
    credentials = {"anna": "pass:word", "empty": ""}
    assert has_password(basic("anna:pass:word"), credentials)
    wrong_headers = [*map(basic, ("anna:pass", "berta:", "anna", "")), {}, {"authorization": "Basic !"}, {"authorization": "x"}]
    for wrong in wrong_headers:
        assert not has_password(wrong, credentials)


def test_same_origin_needs_the_port_too() -> None:
    assert same_origin({"host": "localhost:7860", "origin": "http://localhost:7860"})
    assert not same_origin({"host": "localhost:7860", "origin": "http://localhost:7861"})
