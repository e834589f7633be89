"""The standalone page without a browser: its address, its login, and input that it refuses."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import gradio
import pytest

from ov_backend.errors import CheckpointError, SettingsError

if int(gradio.__version__.split(".")[0]) < 5:
    pytest.skip("the standalone page needs current Gradio", allow_module_level=True)

from fastapi.testclient import TestClient
from PIL import Image, PngImagePlugin

from ov_backend.engine.marker import Marker
from ov_backend.standalone import address, events, serve
from ov_backend.standalone.suggestions import suggestions_for
from ov_backend.ui.auth import page_token
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from tests.standalone.test_generator import generator

__all__ = ["generator"]


def test_a_login_needs_both_parts() -> None:
    assert serve.login(None) is None
    assert serve.login("anna:pass:word") == ("anna", "pass:word")
    for wrong in ("anna", "anna:", ":pass", ""):
        with pytest.raises(SettingsError, match="USER:PASSWORD"):
            serve.login(wrong)


def test_an_address_in_use_is_reported_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(SettingsError, match="something else listens"):
        serve.serve(serve.Options(port=listening.getsockname()[1]), lambda url: None)


def test_a_server_that_is_ended_while_it_prepares_has_not_died_of_it(generator: serve.PictureGenerator) -> None:
    store = generator.controller.store()
    marker = Marker(store.folder)
    marker.set()
    with TestClient(serve.application(generator)):
        assert list(store.folder.glob("*.preparing"))
    assert not list(store.folder.glob("*.preparing"))


@pytest.mark.parametrize("host,begin", [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_addresses_of_both_versions_can_be_listened_at(host: str, begin: str) -> None:
    try:
        listening = address.listen(host, 0)
    except SettingsError as error:
        if ":" in host and ("no address of this machine" in str(error) or "not supported" in str(error)):
            pytest.skip("this machine has no addresses of version 6")
        raise
    with listening:
        port = listening.getsockname()[1]
        assert address.url(host, port) == f"{begin}{port}"
        socket.create_connection((host, port), 5).close()


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "x.safetensors"
    wrong.write_bytes(b"no")
    with pytest.raises(CheckpointError):
        serve.load(serve.Options(checkpoint=wrong))


def test_with_a_login_page_and_routes_ask_for_it(generator: serve.PictureGenerator) -> None:
    client = TestClient(serve.application(generator, ("anna", "secret")))
    assert client.get("/openvino/status").status_code == 401
    assert client.get("/openvino/status", auth=("anna", "wrong")).status_code == 401
    assert client.get("/openvino/status", auth=("anna", "secret")).status_code == 200
    assert client.get("/config").status_code == 401
    assert page_token() not in client.get("/").text
    client.post("/login", data={"username": "anna", "password": "secret"})
    page = client.get("/").text
    assert page_token() in page
    assert client.get("/openvino/status", headers={"x-openvino-token": page_token()}).status_code == 200


def test_without_a_login_page_and_routes_are_open(generator: serve.PictureGenerator) -> None:
    client = TestClient(serve.application(generator), base_url="http://127.0.0.1:7865")
    page = client.get("/").text
    assert "OpenVINOPoller" in page
    assert client.get("/openvino/status").json()["version"] == 1


NUMBERS = [[None] * 10, ["", "", "x", 7, 1, 64, 64, 1, 0.5, ""], ["", "", float("inf"), 7, 1, 64, 64, 1, 0.5, ""]]


@pytest.mark.parametrize("values", NUMBERS)
def test_a_missing_number_is_reported(values: list[object]) -> None:
    with pytest.raises(SettingsError, match="A number is missing"):
        events._parameters(values, False)


def test_without_a_login_a_name_that_can_be_rebound_is_refused(generator: serve.PictureGenerator) -> None:
    client = TestClient(serve.application(generator, None, ("my.example",)), base_url="http://127.0.0.1:7865")
    for path in ("/", "/config", "/openvino/status", "/gradio_api/info"):
        for name, code in (("evil.example", 403), ("a b", 400), ("localhost:7865", 200), ("my.example", 200)):
            answer = client.get(path, headers={"host": name})
            assert answer.status_code == code, (path, name)
            assert code != 403 or "--allow-host" in answer.text


def test_with_a_login_any_name_may_ask(generator: serve.PictureGenerator) -> None:
    client = TestClient(serve.application(generator, ("anna", "secret")), base_url="http://proxy.example")
    assert client.get("/openvino/status", auth=("anna", "secret")).status_code == 200
    assert client.get("/openvino/status").status_code == 401
    assert client.get("/").status_code == 200


def values(**changes: object) -> list[object]:
    fields = {"prompt": "a cat", "negative_prompt": "", "steps": 2, "guidance": 7, "seed": 3, "width": 64, "height": 64}
    return [*{**fields, "batch": 1, "strength": 0.6, "sampler": "Euler", **changes}.values()]


PYTORCH = ["CPU", "f32", False, False, False, True, 0, ""]


def test_the_page_changes_at_once_and_comes_back_with_the_picture(generator: serve.PictureGenerator) -> None:
    first, *_, last = events.generate(generator, None, values(), PYTORCH)
    button, _, live, gallery, message = first
    assert (button["interactive"], gallery["visible"], message) == (False, False, "")
    assert "Beginning" in live
    button, _, live, gallery, message = last
    assert (button["value"], button["interactive"], live) == ("Generate", True, "")
    assert [Path(file).suffix for file in gallery["value"]] == [".png"]
    assert "a cat<br>Steps: 2, Sampler: Euler" in message
    assert "data-openvino-outcome" not in message
    assert generator.last_seed == 3


@pytest.mark.parametrize("changes,expected", [({"width": 65}, "not a multiple of 8"), ({"steps": None}, "A number is missing")])
def test_bad_input_gives_a_sentence_and_the_page_comes_back(
    generator: serve.PictureGenerator, changes: dict[str, object], expected: str
) -> None:
    button, *_, message = list(events.generate(generator, None, values(**changes), PYTORCH))[-1]
    assert button["interactive"] is True
    assert expected in message
    assert 'data-openvino-outcome="failure"' in message


def test_any_failure_gives_the_page_back(generator: serve.PictureGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("<b>")

    monkeypatch.setattr(generator, "_pictures", fail)
    button, *_, message = list(events.generate(generator, None, values(), PYTORCH))[-1]
    assert button["interactive"] is True
    assert "ZeroDivisionError: &lt;b&gt;" in message
    assert 'data-openvino-outcome="failure"' in message


def test_a_page_that_is_closed_does_not_end_the_generation(generator: serve.PictureGenerator) -> None:
    page = events.generate(generator, None, values(seed=77, steps=3), PYTORCH)
    next(page)
    next(page)
    page.close()
    for _ in events.generate(generator, None, values(seed=78), PYTORCH):  # waits for the other one
        pass
    assert sorted(path.name.split("-")[2] for path in generator.folder.glob("*-7[78]-*.png")) == ["77", "78"]


def test_a_waiting_page_s_interrupt_withdraws_its_own_request_only(
    generator: serve.PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, step = threading.Event(), generator.status.step
    monkeypatch.setattr(generator.status, "step", lambda *args: step(*args) if goes_on.wait(60) else None)
    pages = events.Pages(generator)
    first = events.generate(generator, None, values(seed=81), PYTORCH, pages, "first")
    assert next(first)[1]["interactive"] is True
    next(first)
    second = events.generate(generator, None, values(seed=82), PYTORCH, pages, "second")
    next(second)
    assert "Waiting for another page" in next(second)[2]
    pages.interrupt("second")
    *_, (_, interrupt, _, _, message) = second
    assert "Interrupted." in message
    assert interrupt["interactive"] is False
    assert pages.waits("first")
    assert not pages.waits("second")
    goes_on.set()
    *_, (_, _, _, _, message) = first
    assert "Seed: 81" in message
    assert "Interrupted" not in message
    assert not list(generator.folder.glob("*-82-*.png"))


@pytest.mark.parametrize("session", ["own", "reloaded"])
def test_an_interrupt_keeps_the_picture_and_says_after_which_step(generator: serve.PictureGenerator, session: str) -> None:
    pages = events.Pages(generator)
    page = events.generate(generator, None, values(seed=83, steps=900), PYTORCH, pages, "own")
    while "Step" not in next(page)[2]:
        pass
    if session != "own":
        reloaded = events.recent(generator, pages, session)
        next(reloaded)
        assert next(reloaded)[0]["interactive"] is True
    pages.interrupt(session)
    *_, (_, _, _, _, message) = page
    assert re.search(r"Interrupted after step (\d+) of 900\. This is the picture so far\..*Interrupted after step: \1,", message)
    if session != "own":
        assert [*reloaded][-1][0]["interactive"] is False


def test_a_sampler_that_is_not_here_is_left_as_it_is(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "a cat\nSteps: 3, Sampler: Restart, CFG scale: 5, Seed: 1, Size: 64x64, OpenVINO: vae=off")
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", pnginfo=info)
    *fields, message = events.restore(str(tmp_path / "x.png"))
    sampler, accordion = fields[9], fields[-1]
    assert "value" not in sampler
    assert "Restart" in message
    assert accordion["open"] is True
    assert len(fields) == len(vars(Parameters())) + len(vars(Choices())) + 1


def test_known_checkpoints_have_prompts_to_try() -> None:
    assert suggestions_for("fluent-sd").prompts
    assert suggestions_for("anything-else").prompts == ()
