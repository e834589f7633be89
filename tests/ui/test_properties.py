"""OpenVINO properties from a panel: what is allowed is what the docs list and OpenVINO takes, and nothing else gets through."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import openvino as ov
import openvino.opset14 as ops
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_backend import Settings
from ov_backend.core.devices import core
from ov_backend.ui.properties import ALLOWED, DEVICES, Choice, NotAllowed, Number, Switch, Whole, parse_text, read_properties

PANEL = Path(__file__).parents[2] / "docs" / "panel.md"
FILE = "/tmp/any"


def examples(name: str) -> list[Any]:
    """Values at the bounds of a property's range."""
    kind = ALLOWED[name]
    if isinstance(kind, Choice):
        return list(kind.words)
    if isinstance(kind, Switch):
        return [True, False]
    return [kind.low, kind.high, *(kind.words if isinstance(kind, Whole) else ())]


def wrong(name: str) -> list[Any]:
    """Values that are not in a property's range."""
    kind = ALLOWED[name]
    common = [None, [], {}, [1], "", "x" * 5000, "é", float("nan"), -1, 1 << 80, "{CACHE_DIR:/tmp/any}"]
    return [*common, kind.high + 1, str(kind.high + 1)] if isinstance(kind, (Number, Whole)) else [*common, 3.5]


def test_the_panels_page_lists_exactly_the_allowed_properties() -> None:
    section = PANEL.read_text(encoding="utf-8").partition("### OpenVINO properties")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+`) \| (.+) \|$", section, re.MULTILINE)
    rows = {name: value for names, value in cells for name in re.findall(r"`(\w+)`", names)}
    assert "CPU, GPU, NPU, AUTO, HETERO, MULTI, BATCH" in rows.pop("DEVICE_PROPERTIES")
    assert rows == {name: str(kind) for name, kind in ALLOWED.items()}


@pytest.mark.parametrize("name", ALLOWED)
def test_every_value_of_the_range_is_read_and_keeps_its_meaning(name: str) -> None:
    for value in examples(name):
        assert read_properties({name: value}) == {name: value}
        assert read_properties(json.dumps({"DEVICE_PROPERTIES": {"GPU.0": {name: str(value)}}})) == {
            "DEVICE_PROPERTIES": {"GPU.0": {name: value}}
        }


@pytest.mark.parametrize("name", ALLOWED)
def test_every_other_value_is_refused(name: str) -> None:
    for value in wrong(name):
        with pytest.raises(ValueError, match=r"such that|JSON object"):
            read_properties({name: value})


def test_openvino_takes_what_is_allowed_for_its_cpu() -> None:
    x = ops.parameter([1], ov.Type.f32)
    model = ov.Model([ops.relu(x)], [x], "relu")
    writable = {name for name, access in core().get_property("CPU", "SUPPORTED_PROPERTIES").items() if access == "RW"}
    names = sorted(writable & set(ALLOWED))
    assert len(names) >= 10
    for name in names:
        # so many threads take a while to start, and pipelines belong to HETERO
        for value in [value for value in examples(name) if value not in (1024, 64, "PIPELINE_PARALLEL")]:
            core().compile_model(model, "CPU", read_properties({name: value}))
    for device in ("CPU", "AUTO:CPU", "HETERO:CPU", "MULTI:CPU"):
        core().compile_model(model, device, read_properties('{"DEVICE_PROPERTIES": "{CPU:{NUM_STREAMS:1}}"}'))


FORBIDDEN = ["CACHE_DIR", "WEIGHTS_PATH", "CONFIG_FILE", "MODEL_PTR", "DUMP_GRAPHS", "LOG_LEVEL", "CACHE_ENCRYPTION_CALLBACKS"]
FORBIDDEN += ["ENABLE_CPU_RESERVATION", "NPU_COMPILATION_MODE_PARAMS", "CACHE_MODE", "cache_dir", "Cache_Dir", " CACHE_DIR", ""]
SPELLINGS = [
    '{"%s": "/tmp/any"}',
    '{"NUM_STREAMS": 1, "%s": "/tmp/any"}',
    '{"DEVICE_PROPERTIES": "{CPU:{%s:/tmp/any}}"}',
    '{"DEVICE_PROPERTIES": "{CPU:{NUM_STREAMS:1,%s:/tmp/any}}"}',
    '{"DEVICE_PROPERTIES": "{CPU:{NUM_STREAMS:1},GPU:{%s:/tmp/any}}"}',
    '{"DEVICE_PROPERTIES": {"CPU": {"%s": "/tmp/any"}}}',
    '{"DEVICE_PROPERTIES": {"CPU": "{%s:/tmp/any}"}}',
    '{"DEVICE_PROPERTIES": {"CPU": {"DEVICE_PROPERTIES": {"CPU": {"%s": "/tmp/any"}}}}}',
    '{"DEVICE_PROPERTIES_CPU": {"%s": "/tmp/any"}}',
    '{"DEVICE_PROPERTIES_CPU": "{%s:/tmp/any}"}',
    '{"CPU": {"%s": "/tmp/any"}}',
    '{"AUTO": {"%s": "/tmp/any"}}',
    '{"HETERO": "{%s:/tmp/any}"}',
    '{"MULTI": {"CPU": {"%s": "/tmp/any"}}}',
    '{"AUTO": {"CPU": "{%s:/tmp/any}"}}',
    '{"GPU.0": {"%s": "/tmp/any"}}',
    '{"NUM_STREAMS": "1,%s:/tmp/any"}',
    '{"NUM_STREAMS": {"%s": "/tmp/any"}}',
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_property_that_is_not_listed_gets_through_in_no_spelling(name: str, spelling: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message completes a sentence
        read_properties(spelling % name)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


NO_PROPERTIES: list[Any] = ["[]", "1", '"x"', "{", "x" * 4097, "[" * 4000, '{"A": NaN}', "\ud800", b"{}", 7]
NO_PROPERTIES += ['{"NUM_STREAMS": 1, "NUM_STREAMS": 2}', {1: 2}, {"CPU": 5}, {"CPU": []}, {"DEVICE_PROPERTIES": 1}]
NO_PROPERTIES += [{"DEVICE_PROPERTIES": {"cpu": {}}}, {"FPGA.0": {}}, {"DEVICE_PROPERTIES": {f"GPU.{i}": {} for i in range(17)}}]
NO_PROPERTIES += [{"DEVICE_PROPERTIES": "CPU"}, {"CPU": "{A:"}, {"CPU": "{,}"}, {"CPU": "{A:1}}"}, {"CPU": "{A:{B:{C:1}}}"}]
NO_PROPERTIES += [{"CPU": "{A:1,A:2}"}, {"DEVICE_PROPERTIES": "{" * 3000}]


@pytest.mark.parametrize("text", NO_PROPERTIES)
def test_what_is_no_object_of_properties_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON object|such that|which is not allowed"):
        read_properties(text)


def test_names_of_devices_become_one_spelling() -> None:
    expected = {"DEVICE_PROPERTIES": {"CPU": {"NUM_STREAMS": 2}, "GPU.1": {"PERF_COUNT": True}}}
    for given_properties in (
        expected,
        {"DEVICE_PROPERTIES": "{CPU:{NUM_STREAMS:2},GPU.1:{PERF_COUNT:YES}}"},
        {"CPU": {"NUM_STREAMS": "2"}, "DEVICE_PROPERTIES_GPU.1": {"PERF_COUNT": "true"}},
        {"CPU": "{NUM_STREAMS : 2 }", "GPU.1": {"PERF_COUNT": True}},
    ):
        assert read_properties(given_properties) == expected


def test_a_close_name_is_suggested() -> None:
    with pytest.raises(NotAllowed) as refused:
        read_properties({"NUM_STREAM": 1})
    assert "remove it, or write NUM_STREAMS." in refused.value.sentence


@settings(deadline=None)
@given(st.text(alphabet="{}:,AB1 \"'", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_text(text), dict)


def test_a_programmers_own_properties_are_not_restricted() -> None:
    config = {"CACHE_DIR": FILE, "ANYTHING": object()}
    assert Settings(config=config).config == config


def test_every_device_that_may_be_named_is_one_of_openvinos() -> None:
    assert {"CPU", "AUTO", "HETERO", "MULTI"} <= set(DEVICES)
