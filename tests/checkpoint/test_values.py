"""Values beside a checkpoint: each that is used is checked by type and range, and the refusal says what is expected."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_backend.checkpoint.companion_files import LINEAR_END, LINEAR_START, check_vocabulary, read_text_config, read_yaml
from ov_backend.core.errors import CheckpointError

pytest.importorskip("yaml")

WHOLE = [0, -5, 1e9, 10**400, 1.5, True, "many", None, [], {}, float("inf"), float("nan"), "1e3"]
NUMBER = [0, -1, 1e9, True, "x", None, [], {}, float("inf"), float("nan"), "0x10", "1e"]
WRONG: list[tuple[str, Any]] = [
    *(("image_size", value) for value in WHOLE),
    *(("timesteps", value) for value in WHOLE),
    *(("scale_factor", value) for value in NUMBER),
    *(("linear_start", value) for value in [*NUMBER, 1, 0.5]),
    *(("linear_end", value) for value in [*NUMBER, 1, 1e-7]),
    *(("parameterization", value) for value in ["x0", 1, None, [], {}, "V", ""]),
    *(("unet_config", value) for value in [1, "text", [], True]),
    *(("unet_config", {"params": value}) for value in [1, "text", []]),
    *(("unet_config", {"params": {"num_heads": value}}) for value in [-2, 0, 1e9, 1.5, "8", None, [], {}, True]),
    *(("network_config", {"params": {"num_head_channels": value}}) for value in [-2, 0, 1e9, 1.5, "8", None, [], {}, True]),
    *(("denoiser_config", value) for value in [1, "VScaling", []]),
    *(("denoiser_config", {"params": {"scaling_config": value}}) for value in [1, "VScaling", []]),
    *(("denoiser_config", {"target": value}) for value in [1, 10**4000, [], {}, True]),
    *(("denoiser_config", {"params": {"scaling_config": {"target": value}}}) for value in [1, 10**4000, [], {}, True]),
]


def written(folder: Path, value: Any) -> Path:
    """A checkpoint's path with this document as the .yaml beside it; JSON is YAML."""
    path = folder / "model.safetensors"
    text = json.dumps(value).replace("Infinity", ".inf").replace("NaN", ".nan")
    path.with_suffix(".yaml").write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, value: Any) -> str:
    with pytest.raises(CheckpointError) as refused:
        read_yaml(written(folder, value))
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 300
    assert message.endswith(("correct it or remove the file.", "correct it or remove it."))
    return message


@pytest.mark.parametrize("name,value", WRONG, ids=lambda value: repr(value)[:40])
def test_a_value_that_makes_no_sense_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    params = {"linear_start": 0.001, "linear_end": 0.01, name: value}
    message = refusal(tmp_path, {"model": {"params": params}})
    assert "model.yaml has " in message
    assert "; it must be " in message


NAMES = ["image_size", "timesteps", "scale_factor", "linear_start", "linear_end", "parameterization", "unet_config"]


@pytest.mark.parametrize("name", [*NAMES, "denoiser_config: {target", "denoiser_config: {params: {scaling_config: {target"])
def test_a_number_that_python_cannot_write_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.with_suffix(".yaml").write_text(f"model: {{params: {{{name}: 0x{'f' * 20000}{'}' * (2 + name.count('{'))}")
    with pytest.raises(CheckpointError, match=r"model\.yaml has \w+: a number of hundreds of digits; it must be") as refused:
        read_yaml(path)
    assert len(str(refused.value)) < 300


def test_a_number_that_python_cannot_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.with_suffix(".yaml").write_text(f"model: {{params: {{image_size: {'9' * 20000}}}}}")
    with pytest.raises(CheckpointError, match="it holds a number of thousands of digits"):
        read_yaml(path)


@pytest.mark.parametrize(
    "params,words",
    [
        ({"linear_start": 0.5}, "linear_start: 0.5; it must be at most linear_end, 0.012, its default;"),
        ({"linear_end": 1e-5}, "linear_end: 1e-05; it must be at least linear_start, 0.00085, its default;"),
        ({"linear_start": 0.5, "linear_end": 0.25}, "linear_start: 0.5; it must be at most linear_end, 0.25;"),
    ],
)
def test_the_ends_of_the_schedule_are_compared_with_the_defaults_that_are_used(
    tmp_path: Path, params: dict[str, float], words: str
) -> None:
    assert words in refusal(tmp_path, {"model": {"params": params}})
    whole = {"linear_start": LINEAR_START, "linear_end": LINEAR_END} | params
    with pytest.raises(CheckpointError):
        read_yaml(written(tmp_path, {"model": {"params": whole}}))


@pytest.mark.parametrize("document", [None, [], "text", 1, {}, {"model": None}, {"model": 1}, {"model": []}, {"model": {}}])
@pytest.mark.parametrize("key", [None, "params"])
def test_what_is_no_configuration_is_refused(tmp_path: Path, document: Any, key: str | None) -> None:
    document = {"model": {key: document}} if key else document
    if document == {"model": {"params": {}}} or document == {"model": {"params": []}}:
        assert read_yaml(written(tmp_path, document)) == {}
    elif isinstance(document, dict) and isinstance((document.get("model") or {}), dict) and "model" in str(document.get("model")):
        assert read_yaml(written(tmp_path, document)) == document["model"]["params"]
    else:
        assert "is no configuration" in refusal(tmp_path, document)


def test_a_file_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    for data in (b"a: " + b"x" * 100_000, b"\xff\xfe\x00", b"a: \xe9"):
        path.with_suffix(".yaml").write_bytes(data)
        with pytest.raises(CheckpointError, match="is no configuration"):
            read_yaml(path)


def test_values_that_are_meant_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    assert read_yaml(path) == {}
    path.with_suffix(".yaml").write_text(
        "model:\n  params:\n    image_size: 64\n    timesteps: 1000.0\n    linear_start: 1e-4\n    linear_end: 0.012\n"
        "    scale_factor: 1\n    parameterization: v\n    unet_config: {params: {num_heads: -1, num_head_channels: 64}}\n"
        "    network_config:\n    other: [kept]\n"
    )
    assert read_yaml(path) == {
        "image_size": 64,
        "timesteps": 1000,
        "linear_start": 1e-4,
        "linear_end": 0.012,
        "scale_factor": 1.0,
        "parameterization": "v",
        "unet_config": {"params": {"num_heads": -1, "num_head_channels": 64}},
        "other": ["kept"],
    }


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_any_value_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name in ("image_size", "scale_factor", "parameterization", "unet_config"):
        with contextlib.suppress(CheckpointError):
            read_yaml(written(folder, {"model": {"params": {name: value}}}))


WRONG_CONFIGS = ["", "[]", "null", "{", '{"hidden_size": 0}', '{"hidden_size": 1e99}', '{"hidden_size": "8"}', "[" * 100_000]
WRONG_CONFIGS += ['{"num_attention_heads": -1}', '{"num_attention_heads": null}', '{"hidden_act": "exec"}', '{"hidden_act": 1}']


@pytest.mark.parametrize("text", [*WRONG_CONFIGS, '{"a": "' + "x" * (3 << 20) + '"}'], ids=range(len(WRONG_CONFIGS) + 1))
def test_a_text_configuration_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"it must be .*; correct it or remove"):
        read_text_config(tmp_path / "config.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": "b"}', '{"a": -1}', '{"a": 1e30}', '{"a": [1]}', "{" * 5000, '{"a": 1'])
def test_a_broken_vocabulary_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "vocab.json").write_text(text)
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(CheckpointError, match=r"vocab\.json cannot be used"):
        check_vocabulary(tmp_path / "vocab.json")


@pytest.mark.parametrize("data", [None, b"\xff", b"x" * (3 << 20)])
def test_broken_merges_are_refused(tmp_path: Path, data: bytes | None) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 1}')
    if data is not None:
        (tmp_path / "merges.txt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"merges\.txt cannot be used"):
        check_vocabulary(tmp_path / "vocab.json")
