"""The standalone page without a browser: its address, its login, and input that it refuses."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio
import pytest

from ov_backend.core.errors import CheckpointError, SettingsError

if int(gradio.__version__.split(".")[0]) < 5:
    pytest.skip("the standalone page needs current Gradio", allow_module_level=True)

from fastapi.testclient import TestClient

from ov_backend.engine.crash_sentinel import CrashSentinel
from ov_backend.hosts.standalone import events, serve, serve_options
from ov_backend.hosts.standalone.checkpoint_files import checkpoints_of
from ov_backend.hosts.standalone.lora_tags import lora_names
from ov_backend.hosts.standalone.page import comparison, page
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.hosts.standalone.visitors import Visitors
from ov_backend.ui.access import page_token
from ov_backend.ui.choices import Choices
from tests.hosts.standalone.checkpoints import write_small_checkpoint


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
    store = generator.store()
    marker = CrashSentinel(store.folder)
    marker.set()
    with TestClient(serve.application(generator)):
        assert list(store.folder.glob("*.preparing"))
    assert not list(store.folder.glob("*.preparing"))


@pytest.mark.parametrize("host,begin", [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_addresses_of_both_versions_can_be_listened_at(host: str, begin: str) -> None:
    try:
        listening = serve_options.listen(host, 0)
    except SettingsError as error:
        if ":" in host and ("no address of this machine" in str(error) or "not supported" in str(error)):
            pytest.skip("this machine has no addresses of version 6")
        raise
    with listening:
        port = listening.getsockname()[1]
        assert serve_options.url(host, port) == f"{begin}{port}"
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


NUMBERS = [[None] * 12, *(["", "", number, 7, 1, 64, 64, 1, 0.5, "", 1, ""] for number in ("x", float("inf")))]


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


def test_a_number_comes_from_the_page_with_its_fraction(generator: serve.PictureGenerator) -> None:
    components = {component.elem_id: component for component in page(Visitors(generator)).blocks.values()}
    for name in ("steps", "width", "height", "batch", "batch_count", "seed"):
        assert components[name].preprocess(1.9) == 1.9, name


def values(**changes: object) -> list[object]:
    fields = {"prompt": "a cat", "negative_prompt": "", "steps": 2, "guidance": 7, "seed": 3, "width": 64, "height": 64}
    return [*{**fields, "batch": 1, "strength": 0.6, "sampler": "Euler", "hires": 1, "upscaler": "Lanczos", **changes}.values()]


PYTORCH = ["CPU", "f32", False, False, False, True, 0, ""]


def ask(visitors: Visitors, key: str = "key", **changes: object) -> Iterator[dict[str, Any]]:
    return events.generate(visitors, key, None, values(**changes), PYTORCH)


def test_the_page_changes_at_once_and_comes_back_with_the_picture(generator: serve.PictureGenerator) -> None:
    visitors = Visitors(generator)
    first, *_, last = ask(visitors)
    assert (first["generate"]["interactive"], first["gallery"]["visible"], first["message"]) == (False, False, "")
    assert "Beginning" in first["live"]
    assert (last["generate"]["value"], last["generate"]["interactive"], last["live"]) == ("Generate", True, "")
    (file,) = last["gallery"]["value"]
    assert "a cat<br>Steps: 2, Sampler: Euler" in last["message"]
    assert f"Saved as {file}." in last["message"]
    assert last["chosen"] == file
    assert "data-openvino-outcome" not in last["message"]
    assert events.last_seed(visitors, "key") == 3
    assert events.last_seed(visitors, "another's") == -1


BAD = [
    ({"width": 65}, "not a multiple of 8"),
    ({"width": 64.5}, "not a multiple of 8"),
    ({"steps": None}, "A number is missing"),
    ({"steps": 1.9}, "Steps is 1.9; it must be a whole number"),
    ({"batch": 1.5}, "Batch size is 1.5; it must be a whole number"),
    ({"seed": 1.5}, "The seed is 1.5; it must be a whole number"),
    ({"seed": -5}, "The seed is -5; it must be a whole number from -1"),
]


@pytest.mark.parametrize("changes,expected", BAD)
def test_bad_input_gives_a_sentence_in_the_picture_s_place(
    generator: serve.PictureGenerator, changes: dict[str, object], expected: str
) -> None:
    last = list(ask(Visitors(generator), **changes))[-1]
    assert last["generate"]["interactive"] is True
    assert expected in last["message"]
    assert 'data-openvino-outcome="failure"' in last["message"]
    assert last["gallery"]["visible"] is last["actions"]["visible"] is False


def test_any_failure_gives_the_page_back(generator: serve.PictureGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("<b>")

    monkeypatch.setattr(generator, "_pictures", fail)
    last = list(ask(Visitors(generator)))[-1]
    assert last["generate"]["interactive"] is True
    assert "ZeroDivisionError: &lt;b&gt;" in last["message"]
    assert 'data-openvino-outcome="failure"' in last["message"]


def test_a_page_that_is_closed_gets_its_picture_once_it_is_loaded_again(generator: serve.PictureGenerator) -> None:
    visitors = Visitors(generator)
    page = ask(visitors, seed=77, steps=3)
    next(page)
    next(page)
    page.close()
    for _ in ask(visitors, "another's", seed=78):  # waits for the other one
        pass
    assert sorted(path.name.split("-")[2] for path in generator.folder.glob("*-7[78]-*.png")) == ["77", "78"]
    (again,) = events.reloaded(visitors, "key")
    assert "-77-" in again["gallery"]["value"][0]


def test_several_batches_have_seeds_that_follow_each_other(generator: serve.PictureGenerator) -> None:
    visitors = Visitors(generator)
    changes = list(events.generate(visitors, "key", None, values(seed=30, batch=2), PYTORCH, 2))
    assert [Path(path).name.split("-")[2] for path in changes[-1]["gallery"]["value"]] == ["30", "31", "32", "33"]
    for wrong in (0, 101, 1.5, None):
        *_, last = events.generate(visitors, "key", None, values(), PYTORCH, wrong)
        assert "Batch count is" in last["message"]


def test_the_pictures_of_a_page_are_newest_first_and_no_other_page_s(generator: serve.PictureGenerator) -> None:
    visitors = Visitors(generator)
    for key, seed in (("key", 1), ("key", 2), ("another's", 3)):
        list(ask(visitors, key, seed=seed))
    own = [Path(path) for path in next(events.reloaded(visitors, "key"))["history"]["value"]]
    assert [path.name.split("-")[2] for path in own] == ["2", "1"]
    assert "Seed: 1" in events.choose(visitors, "key", own[1].name)["message"]
    assert events.choose(visitors, "another's", own[1].name) == {}
    for key in ("", "new"):
        (loaded,) = events.reloaded(visitors, key)
        assert (loaded["history"]["value"], loaded["gallery"]["visible"], loaded["message"]) == ([], False, "")


def test_a_comparison_of_another_page_s_picture_is_not_shown(generator: serve.PictureGenerator) -> None:
    visitors = Visitors(generator)
    for key in ("another's", "key"):
        list(ask(visitors, key))
    generator.controller.start_compare(Choices())
    while generator.status.busy:
        time.sleep(0.05)
    assert generator.controller.pictures
    assert [comparison(visitors, key)["visible"] for key in ("key", "another's", "")] == [True, False, False]


def test_of_the_pictures_folder_only_what_a_page_was_given_is_served(
    generator: serve.PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitors = Visitors(generator)
    monkeypatch.setattr(serve, "Visitors", lambda generator: visitors)
    list(ask(visitors))
    (made,) = visitors.made("key")
    (generator.folder / "sub" / ".ssh").mkdir(parents=True)
    others = [generator.folder / name for name in ("notes.txt", ".hidden.png", "sub/.ssh/id_rsa")]
    for other in others:
        other.write_text("secret")
    with TestClient(serve.application(generator), base_url="http://127.0.0.1:7865") as client:
        served = set(re.findall(r'"path": ?"([^"]+\.png)"', reloaded_page(client, "key")))
        assert {Path(path).name for path in served} == {made.name}
        for path in served:
            assert client.get(f"/gradio_api/file={path}").content == made.read_bytes()
        for other in (made, *others):
            assert client.get(f"/gradio_api/file={other}").status_code == 403, other


def test_copies_of_pictures_are_in_a_private_folder_that_goes_at_the_end(
    generator: serve.PictureGenerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path := tmp_path / "not there yet"))
    running = serve.application(generator)
    (others,) = tmp_path.iterdir()
    killed = others.with_name(f"{others.name}-killed")
    killed.mkdir()
    (killed / "lock").touch()
    with TestClient(serve.application(generator), base_url="http://127.0.0.1:7865") as client:
        (own,) = {*tmp_path.iterdir()} - {others}
        assert own != killed
        assert own.stat().st_mode & 0o777 == 0o700
        (copy,) = client.post("/gradio_api/upload", files={"files": ("x.png", b"x")}).json()
        assert own in Path(copy).parents
    assert [*tmp_path.iterdir()] == [others]
    del running


def reloaded_page(client: TestClient, key: str) -> str:
    """What the browser is told when the page of this key is loaded."""
    functions = client.get("/config").json()["dependencies"]
    number = next(each["id"] for each in functions if each["api_name"] == "reloaded")
    client.post("/gradio_api/queue/join", json={"data": [key], "fn_index": number, "session_hash": "x"})
    return client.get("/gradio_api/queue/data?session_hash=x").text


def test_only_the_page_whose_picture_was_compared_gets_both_pictures(
    generator: serve.PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitors = Visitors(generator)
    monkeypatch.setattr(serve, "Visitors", lambda generator: visitors)
    client = TestClient(serve.application(generator), base_url="http://127.0.0.1:7865")
    for key in ("another's", "key"):
        list(ask(visitors, key))
    generator.controller.start_compare(Choices())
    while generator.status.busy:
        time.sleep(0.05)
    list(ask(visitors, "another's"))  # a later picture does not change whose the compared one is
    for name in ("pytorch", "openvino"):
        answers = [client.get(f"/openvino/compare/{name}", headers={"x-openvino-page": key}) for key in ("key", "another's", "")]
        assert [answer.status_code for answer in answers] == [200, 404, 404]
        assert client.get(f"/openvino/compare/{name}").status_code == 404


def test_a_waiting_page_s_interrupt_withdraws_its_own_request_only(
    generator: serve.PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, step = threading.Event(), generator.status.step
    monkeypatch.setattr(generator.status, "step", lambda *args: step(*args) if goes_on.wait(60) else None)
    visitors = Visitors(generator)
    first = ask(visitors, "first", seed=81)
    assert next(first)["interrupt"]["interactive"] is True
    next(first)
    second = ask(visitors, "second", seed=82)
    next(second)
    assert "Waiting for another page" in next(second)["live"]
    visitors.interrupt("second")
    *_, last = second
    assert "Interrupted." in last["message"]
    assert last["interrupt"]["interactive"] is False
    goes_on.set()
    *_, last = first
    assert "Seed: 81" in last["message"]
    assert "Interrupted" not in last["message"]
    assert not list(generator.folder.glob("*-82-*.png"))


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_an_interrupt_keeps_the_picture_and_says_after_which_step(generator: serve.PictureGenerator, is_reloaded: bool) -> None:
    visitors = Visitors(generator)
    page = ask(visitors, seed=83, steps=900)
    while not (run := generator.status.snapshot()["run"]) or not run["active"] or run["step"] == 0:
        next(page)
    if is_reloaded:
        page.close()
        page = events.reloaded(visitors, "key")
        next(page)
        assert next(page)["interrupt"]["interactive"] is True
    visitors.interrupt("key")
    *_, last = page
    said = re.search(r"Interrupted after step: (\d+),", last["message"])
    assert said
    assert is_reloaded or f"Interrupted after step {said[1]} of 900. This is the picture so far." in last["message"]
    assert last["interrupt"]["interactive"] is False


def test_a_folder_s_checkpoints_and_loras_are_offered(tmp_path: Path) -> None:
    first, second = (write_small_checkpoint(tmp_path, name) for name in ("b", "a"))
    (tmp_path / "no.safetensors").write_bytes(b"x")
    (tmp_path / "lora" / "more").mkdir(parents=True)
    for name in ("lora/ink", "lora/more/paint", "lora/a,b"):
        (tmp_path / f"{name}.safetensors").touch()
    assert checkpoints_of(tmp_path) == (second, first)
    assert checkpoints_of(first) == checkpoints_of(tmp_path / "lora") == checkpoints_of(None) == ()
    assert lora_names([tmp_path / "lora", tmp_path / "none"]) == ["ink", "more/paint"]
    assert events.add_lora("a cat", "ink") == {"prompt": "a cat <lora:ink:1>", "lora": None}


def test_known_checkpoints_have_prompts_to_try() -> None:
    assert suggestions_for("fluent-sd").prompts
    assert suggestions_for("anything-else").prompts == ()
