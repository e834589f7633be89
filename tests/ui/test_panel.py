"""The panel's controls, their order and names, in the installed Gradio."""

from __future__ import annotations

import dataclasses
import html.parser
import importlib.util
from collections.abc import Iterator
from typing import Any

import gradio as gr
import pytest

from ov_backend.core import devices
from ov_backend.model.runtime import saturation
from ov_backend.ui import panel
from ov_backend.ui.choices import DESCRIPTION_SEPARATOR, Choices
from ov_backend.ui.panel import TEXTS, build_panel, device_choices
from ov_backend.ui.status_html import ACTIONS, details_html, prepare_html, status_html

FIELDS = [field.name for field in dataclasses.fields(Choices)]


def build(**kwargs: Any) -> tuple[gr.Blocks, list[Any]]:
    with gr.Blocks() as blocks:
        components = build_panel("txt2img", **kwargs)
    return blocks, components


def test_nine_controls_in_order_each_named_and_explained() -> None:
    _, components = build()
    assert [component.elem_id for component in components] == [f"openvino_txt2img_{field}" for field in FIELDS]
    assert [component.label for component in components] == [TEXTS[field][0] for field in FIELDS]
    assert all(component.info for component in components)
    assert len({component.label for component in components}) == 9


@pytest.mark.parametrize(
    "default,exact,hint",
    [
        ("bf16", True, ", and slower. int8 is faster still, after one picture that calibrates; a few pictures become other ones"),
        ("bf16", False, ", and slower"),
        ("f32", True, ". int8 is faster, after one picture that calibrates; a few pictures become other ones"),
        ("f32", False, ""),
    ],
)
def test_the_precisions_are_explained_by_what_is_known_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, default: str, exact: bool, hint: str
) -> None:
    cpu = devices.Device("CPU", "a CPU", ("f32", "bf16", "f16"), default)
    monkeypatch.setattr(devices, "list_devices", lambda: [cpu])
    monkeypatch.setattr(saturation, "multiplies_8_bits_exactly", lambda: exact)
    _, components = build()
    shown = components[FIELDS.index("precision")].info
    assert shown == f"auto is {default} on this CPU. f32 is nearest to PyTorch's picture{hint}"


@pytest.mark.parametrize("names,explained", [(["CPU"], False), (["CPU", "GPU"], True)])
def test_combinations_of_devices_are_explained_where_there_are_two(
    monkeypatch: pytest.MonkeyPatch, names: list[str], explained: bool
) -> None:
    found = [devices.Device(name, f"a {name}", ("f32",), "f32") for name in names]
    monkeypatch.setattr(devices, "list_devices", lambda: found)
    _, components = build()
    assert ("AUTO and HETERO combine devices" in components[0].info) == explained


def test_the_initial_values_are_the_defaults() -> None:
    choices = Choices("AUTO:GPU,CPU", "f32", False, True, False, False, 2048, '{"PERF_COUNT": true}', "on")
    _, components = build(defaults=choices)
    assert Choices.from_args([component.value for component in components]) == (choices, [])


def test_two_panels_share_no_element() -> None:
    with gr.Blocks() as blocks:
        build_panel("txt2img")
        build_panel("img2img")
    config = blocks.get_config_file() if hasattr(blocks, "get_config_file") else blocks.config
    ids = [elem_id for each in config["components"] if (elem_id := each["props"].get("elem_id"))]
    assert len(ids) == len(set(ids)) >= 24


def test_a_page_with_the_panel_holds_one_token() -> None:
    blocks, _ = build()
    components = blocks.get_config_file()["components"]
    assert sum("data-openvino-token" in str(each["props"].get("value")) for each in components) == 1


def test_devices_are_listed_with_their_full_names() -> None:
    listed, message = device_choices()
    names = [text.split(DESCRIPTION_SEPARATOR)[0] for text in listed]
    assert names[0] == "CPU"
    assert "AUTO" in names
    assert all(len(text.split(DESCRIPTION_SEPARATOR)[1]) > 3 for text in listed)
    assert bool(message) == all(name in ("CPU", "AUTO") for name in names), "without an accelerator there is a message"


def test_an_accelerator_is_combined_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from ov_backend.core import devices

    available = [devices.Device("CPU", "A CPU", ("f32",), "f32"), devices.Device("GPU", "A GPU", ("f32", "f16"), "f16")]
    monkeypatch.setattr(devices, "list_devices", lambda: available)
    listed, message = device_choices()
    assert [text.split(DESCRIPTION_SEPARATOR)[0] for text in listed] == ["CPU", "GPU", "AUTO", "AUTO:GPU,CPU", "HETERO:GPU,CPU"]
    assert message == ""


def test_without_openvino_the_panel_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(panel.importlib.util, "find_spec", lambda name: None if name == "openvino" else real(name))
    assert device_choices() == (["CPU"], panel.NOT_INSTALLED)
    blocks, components = build()
    assert len(components) == 9
    notes = [each["props"].get("value") for each in blocks.get_config_file()["components"]]
    assert any("pip install openvino" in str(note) for note in notes)


def test_an_openvino_that_does_not_start_does_not_break_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from ov_backend.core import devices

    def broken() -> list[Any]:
        raise RuntimeError("<b>no plugin</b>")

    monkeypatch.setattr(devices, "list_devices", broken)
    blocks, components = build()
    assert len(components) == 9
    text = str(blocks.get_config_file())
    assert "&lt;b&gt;no plugin&lt;/b&gt;" in text
    assert "<b>no plugin" not in text


def test_wrong_properties_are_explained_as_text() -> None:
    assert panel._config_error('{"PERF_COUNT": true}') == ""
    message = panel._config_error("<script>alert(1)</script>")
    assert "a JSON object of OpenVINO properties" in message
    assert "&lt;script&gt;" in message
    assert "<script>" not in message


class _Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.inputs = self.hints = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids += [attributes["id"] or ""] if "id" in attributes else []
        if tag == "input":
            assert "label" in self.open, "an input without a label"
            assert self.hints > self.inputs, "an input without a hint"
            self.inputs += 1
        self.hints += attributes.get("class") == "openvino-hint"
        if tag == "button":
            assert attributes.get("type") == "button"
            assert attributes.get("title")
        if tag != "input":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_panel_s_own_html_is_well_formed_and_labelled() -> None:
    parser = _Elements()
    parser.feed(prepare_html("img2img", ["<512>"]) + status_html("img2img", ["device"]) + details_html("img2img"))
    parser.close()
    assert parser.open == []
    assert parser.inputs == 2
    assert len(parser.ids) == len(set(parser.ids))
    assert {f"openvino_img2img_{action}" for action in ACTIONS} <= set(parser.ids)


def test_device_precision_and_prepare_come_before_a_closed_accordion() -> None:
    blocks, _ = build()
    components = {each["id"]: each for each in blocks.get_config_file()["components"]}

    def below(node: dict[str, Any], inside: str = "") -> Iterator[tuple[str, str]]:
        props = components[node["id"]]["props"] if node["id"] in components else {}
        name = str(props.get("elem_id") or "").removeprefix("openvino_txt2img_")
        yield name, inside
        if name == "more":
            assert props["open"] is False
        for child in node.get("children") or ():
            yield from below(child, "more" if "more" in (name, inside) else "")

    places = {name: inside for name, inside in below(blocks.get_config_file()["layout"]) if name}
    assert [name for name, inside in places.items() if inside and name in FIELDS] == [*FIELDS[2:-2], "low_memory", "config_json"]
    order = list(places)
    assert order.index("device") < order.index("precision") < order.index("prepare") < order.index("status") < order.index("more")
