"""Random input at every entry: it is read or refused, and nothing else. ``FUZZ=1000`` tries a thousand for each entry."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ov_backend import OVBackendError, Settings
from ov_backend.core.errors import CheckpointError, DeviceError, SettingsError
from ov_backend.torch_compile import options as torch_compile_options
from ov_backend.ui.access import MalformedHost, has_password, host_name, same_origin
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import parse_choices, parse_precompile
from ov_backend.ui.infotext import Parameters, refused_choices
from ov_backend.ui.properties import read_properties

pytest.importorskip("diffusers")

from ov_backend.checkpoint import load_pipeline
from ov_backend.cli import main as cli

RUNS = int(os.environ.get("FUZZ") or 25)
fuzz = settings(
    max_examples=RUNS,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8
)
NAMES = list(vars(Choices()))
#: Options that end without work where everything about them is right.
OPTIONS = ["--steps", "--size", "--seed", "--guidance", "--sampler", "--precision", "--device", "--out", "--checkpoint",
    "--cache-dir"]
WORDS = st.sampled_from(["", "0", "-1", "nan", "64", "64x64", "CPU", "AUTO:", "x.png", ".", "/", "f32", ",", "é", "'", "--"])


@fuzz
@given(arguments=st.lists(st.sampled_from(OPTIONS) | WORDS | st.text(max_size=12), max_size=8))
def test_any_command_line_is_refused_or_understood(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint does not exist, so that none makes a picture."""
    monkeypatch.chdir(tmp_path)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(["demo", *arguments, "--checkpoint", "none.safetensors"])
        except SystemExit as system_exit:
            code = int(system_exit.code or 0)
    assert code == 2 or (code == 0 and out.getvalue().startswith("usage:"))
    assert len(err.getvalue().splitlines()) <= 2
    assert "this is a defect" not in err.getvalue()


@fuzz
@given(data=st.binary(max_size=200), text=JSON, name=st.text(max_size=10))
def test_any_checkpoint_is_refused(data: bytes, text: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    entry = json.dumps({name: text}).encode()
    for content in (data, len(data).to_bytes(8, "little") + data, len(entry).to_bytes(8, "little") + entry):
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            load_pipeline(path)


KEYS = st.sampled_from(["image_size", "timesteps", "scale_factor", "linear_start", "linear_end", "parameterization",
    "unet_config"])


@fuzz
@given(params=st.dictionaries(KEYS, JSON, max_size=4) | JSON, text=st.text(alphabet="&*a:[]{}- \n'\"<!", max_size=60))
def test_any_yaml_is_read_or_refused(params: Any, text: str, tmp_path: Path) -> None:
    from ov_backend.checkpoint.companion_files import read_yaml

    path = tmp_path / "model.safetensors"
    for content in (json.dumps({"model": {"params": params}}), text, f"model: {{params: {text}}}"):
        path.with_suffix(".yaml").write_text(content, encoding="utf-8", errors="replace")
        with contextlib.suppress(CheckpointError):
            assert isinstance(read_yaml(path), dict)


@fuzz
@given(body=JSON | st.fixed_dictionaries({"sizes": JSON}, optional={"batch": JSON, "choices": JSON}))
def test_any_body_is_read_or_refused(body: Any) -> None:
    for parse in (parse_precompile, parse_choices):
        with contextlib.suppress(SettingsError):
            parse(body)


@fuzz
@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), args=st.lists(JSON, max_size=10),
    text=st.text(max_size=80))
def test_any_choices_are_read_or_reported(fields: dict[str, Any], args: list[Any], text: str) -> None:
    with contextlib.suppress(SettingsError):
        Choices.from_fields(fields)
    choices, _ = Choices.from_args(args)
    assert Choices.from_args(list(vars(choices).values())) == (choices, [])
    field = "; ".join(f"{name}={value}" for name, value in fields.items())
    for each in (text, field, f"a\nSteps: 1, Seed: 2, Size: 8x8, OpenVINO: {json.dumps(field)}"):
        assert isinstance(Choices.from_infotext(each), Choices)
        assert isinstance(Parameters.from_text(each)[0].steps, int)
        assert isinstance(refused_choices(each), list)


@fuzz
@given(properties=JSON | st.text(max_size=80))
def test_any_properties_are_read_or_refused(properties: Any) -> None:
    with contextlib.suppress(ValueError):
        checked = read_properties(properties)
        assert read_properties(checked) == checked
        assert not [name for name in str(checked).split("'") if name.endswith(("DIR", "PATH", "FILE"))]


FIELDS = st.sampled_from(sorted(Settings.__dataclass_fields__))


@fuzz
@given(values=st.dictionaries(FIELDS | st.text(max_size=8), JSON, max_size=3))
def test_any_options_of_torch_compile_are_read_or_refused(values: dict[str, Any]) -> None:
    with contextlib.suppress(SettingsError, DeviceError):
        assert isinstance(torch_compile_options.parse(values), Settings)


@fuzz
@given(header=st.text(max_size=40) | st.binary(max_size=40).map(lambda data: data.decode("latin-1")))
def test_any_header_is_understood_or_refused(header: str) -> None:
    assert not has_password({"authorization": f"Basic {header}"}, {"anna": "a long secret password"})
    assert not same_origin({"origin": f"http://x{header}", "host": "localhost"})
    with contextlib.suppress(MalformedHost):
        host_name(header)


@fuzz
@given(device=st.text(alphabet="AUTOCPUGHER:,.-0()", max_size=14))
def test_any_device_is_found_or_refused(device: str) -> None:
    from ov_backend.core import devices

    with contextlib.suppress(OVBackendError):
        chosen = Settings(device=device)
        devices.check(chosen)
        assert devices.resolved_precision(chosen) in ("f32", "bf16", "f16")
