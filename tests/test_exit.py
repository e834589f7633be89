"""Programs that use the package and then end: each at once, with exit code 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A program whose model is a global variable: Python deletes that one only while the interpreter shuts down.
COMPILED = """
import torch
import ov_backend
model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
compiled = torch.compile(model, backend="openvino_fx", options={"precision": "f32"})
with torch.no_grad():
    assert torch.allclose(compiled(x), model(x), atol=1e-5)
"""
ACCELERATED = """
import torch
import ov_backend
model, x = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3), torch.nn.ReLU()).eval(), torch.randn(1, 4, 8, 8)
with torch.no_grad():
    expected = model(x)
    accelerated = ov_backend.accelerate({"unet": model}, ov_backend.Settings(precision="f32"))
    assert torch.allclose(model(x), expected, atol=1e-4)
"""
TRAINED = """
import torch
import ov_backend
model = torch.nn.Linear(4, 4)
compiled = torch.compile(model, backend="openvino_fx", options={"aot_autograd": True})
compiled(torch.randn(3, 4)).sum().backward()
assert model.weight.grad is not None
"""


@pytest.mark.parametrize("program", [COMPILED, ACCELERATED, TRAINED], ids=["compiled", "accelerated", "trained"])
def test_a_program_ends(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OPENVINO_TORCH_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=False, timeout=120, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "Exception ignored" not in ended.stderr
