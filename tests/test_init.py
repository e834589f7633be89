"""The public API: the names that ``import ov_backend`` offers, and that it loads OpenVINO at first use only."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

import ov_backend
from ov_backend.core.errors import first_line, last_line

PUBLIC = {
    *("AcceleratedPipeline", "OVBackendError", "Settings", "__version__", "accelerate", "batch", "explain"),
    *("openvino_fx", "openvino_ts", "reset", "stats"),
}


def test_the_public_api_is_listed() -> None:
    assert set(ov_backend.__all__) == PUBLIC
    assert {name for name in dir(ov_backend) if not name.startswith("__")} == PUBLIC - {"__version__"}
    assert "__version__" in dir(ov_backend)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_exists(name: str) -> None:
    assert getattr(ov_backend, name) is not None


def test_an_unknown_name_raises() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compile'"):
        ov_backend.compile  # noqa: B018


def test_accelerate_takes_settings_by_name_in_place_of_those_given() -> None:
    module = torch.nn.Linear(3, 3)
    with ov_backend.accelerate({"net": module}, ov_backend.Settings(precision="bf16"), precision="f32", fallback="raise") as made:
        module(torch.zeros(1, 3))
        assert (made.engine.settings.precision, made.engine.settings.fallback) == ("f32", "raise")
        assert repr(made) == "<Accelerated net: on CPU in f32; calls 1 in OpenVINO, 0 in PyTorch>"
    assert repr(made) == "<Accelerated net: restored; calls 1 in OpenVINO, 0 in PyTorch>"
    with pytest.raises(ov_backend.OVBackendError, match="precision is 'f8'; it must be one of"):
        ov_backend.accelerate({"net": module}, precision="f8")
    with pytest.raises(ov_backend.OVBackendError, match=r"settings is a str; .* as accelerate\(pipe, device="):
        ov_backend.accelerate({"net": module}, "CPU")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("devise", r"Unknown option 'devise'\. Did you mean 'device'\? Known options: settings, device, "),
        ("config", r"config is given in the settings, as accelerate\(pipe, ov_backend\.Settings\(config=\.\.\.\)\)"),
    ],
)
def test_a_keyword_that_accelerate_does_not_know_is_told_in_one_sentence(name: str, sentence: str) -> None:
    module = torch.nn.Linear(2, 2)
    with pytest.raises(ov_backend.OVBackendError, match=sentence):
        ov_backend.accelerate({"x": module}, **{name: "GPU"})
    assert "forward" not in vars(module)


def test_the_options_of_a_batch_stand_in_its_signature() -> None:
    pytest.importorskip("diffusers")
    from ov_backend.batch.options import Options

    named = [name for name in inspect.signature(ov_backend.batch).parameters if name not in ("rows", "out", "report")]
    assert named == list(Options.__dataclass_fields__)


def test_importing_the_package_does_not_load_openvino() -> None:
    code = "import sys, ov_backend; sys.exit('openvino' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_importing_the_package_does_not_import_the_compiler_of_pytorch() -> None:
    code = "import torch, sys; before = 'torch._dynamo' in sys.modules; import ov_backend; "
    code += "sys.exit('torch._dynamo' in sys.modules and not before)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


FIRST = ["import ov_backend", "import torch._dynamo, ov_backend", "import ov_backend.core.settings, torch"]


@pytest.mark.parametrize("first", FIRST)
def test_the_backend_is_known_by_name_after_the_import_where_no_entry_point_names_it(first: str) -> None:
    """As in a folder that is on the path and not installed."""
    code = f"""
import importlib.metadata
importlib.metadata.entry_points = lambda **group: importlib.metadata.EntryPoints(())
{first}
import sys, torch
assert torch.compile(lambda x: x * 2, backend="openvino_fx")(torch.ones(3)).tolist() == [2, 2, 2]
import ov_backend
assert sum(network["calls"] for network in ov_backend.stats().values()) == 1
assert "_Finder" not in [type(finder).__name__ for finder in sys.meta_path]
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_pytorch_one_sentence_says_so() -> None:
    code = "import sys; sys.modules['torch'] = None; import ov_backend"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=120, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(
        "MissingPackage: ov_backend needs PyTorch, which is not installed here; run: pip install torch"
    )
    assert "During handling" not in done.stderr


def test_a_trace_in_another_thread_may_come_before_the_main_thread_s_own() -> None:
    """PyTorch 2.11 built for CUDA crashed in this order on a machine without a CUDA device."""
    code = """
import threading
import ov_backend, torch
from torch._subclasses import FakeTensorMode

def trace():
    with FakeTensorMode():
        torch.empty(3)

thread = threading.Thread(target=trace)
thread.start()
thread.join()
trace()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


@pytest.mark.parametrize("text,first,last", [("a\n\n  b \n", "a", "b"), ("one", "one", "one"), ("", "no message", "no message")])
def test_first_and_last_line_of_an_error(text: str, first: str, last: str) -> None:
    assert (first_line(RuntimeError(text)), last_line(RuntimeError(text))) == (first, last)
