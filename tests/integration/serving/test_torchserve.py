"""TorchServe itself, as published: a model is archived, served, and answered for by OpenVINO."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.torch_compile import agree

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "torchserve"
SECONDS = 180

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("ts", "model_archiver")),
        reason="TorchServe is not installed: pip install torchserve torch-model-archiver",
    ),
    pytest.mark.skipif(shutil.which("java") is None, reason="TorchServe needs a Java runtime"),
]


def model() -> torch.nn.Module:
    spec = importlib.util.spec_from_file_location("served_model", EXAMPLE / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Small().eval()


def archive(folder: Path, net: torch.nn.Module, config: Path) -> None:
    torch.save(net.state_dict(), folder / "small.pt")
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", "small", "--version", "1.0"]
    files = {"model-file": EXAMPLE / "model.py", "serialized-file": folder / "small.pt", "handler": EXAMPLE / "handler.py"}
    for name, path in {**files, "config-file": config, "export-path": folder}.items():
        command += [f"--{name}", str(path)]
    subprocess.run(command, check=True, timeout=SECONDS)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return found


class Server:
    """A TorchServe of this test's own, with the handler's model in one worker."""

    def __init__(self, folder: Path) -> None:
        names = ("inference_address", "management_address", "metrics_address")
        ports = free_ports(5)
        lines = [f"{name}=http://127.0.0.1:{port}" for name, port in zip(names, ports)]
        lines += [f"grpc_inference_port={ports[3]}", f"grpc_management_port={ports[4]}", "disable_token_authorization=true"]
        (folder / "config.properties").write_text("\n".join(lines) + "\n")
        paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        logs = {"LOG_LOCATION": str(folder / "logs"), "METRICS_LOCATION": str(folder / "logs")}
        own = {"TMPDIR": str(folder), "TEMP": str(folder)}  # it notes there that it runs, one for each such folder
        command = [sys.executable, "-m", "ts.model_server", "--start", "--foreground", "--ncs", "--models", "small.mar"]
        command += ["--ts-config", str(folder / "config.properties"), "--model-store", str(folder)]
        env = {**os.environ, **paths, **logs, **own}
        self.address, self.log = f"http://127.0.0.1:{ports[0]}", folder / "torchserve.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)

    def ask(self, row: list[float]) -> dict[str, Any]:
        """The answer for one row; waits until the worker has loaded the model."""
        body, until = json.dumps({"data": row}).encode(), time.monotonic() + SECONDS
        request = urllib.request.Request(f"{self.address}/predictions/small", body, {"Content-Type": "application/json"})
        while True:
            try:
                with urllib.request.urlopen(request, timeout=SECONDS) as response:
                    found: dict[str, Any] = json.load(response)
                    return found
            except (urllib.error.URLError, ConnectionError) as error:
                if self.process.poll() is not None or time.monotonic() > until or "Traceback" in self.log.read_text():
                    raise AssertionError(self.log.read_text()) from error
                time.sleep(0.5)

    def stop(self) -> None:
        if self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    started: list[Server] = []

    def start(net: torch.nn.Module, config: Path) -> Server:
        archive(tmp_path, net, config)
        started.append(Server(tmp_path))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def test_torchserve_answers_by_openvino(serve: Any) -> None:
    net, rows = model(), torch.randn(3, 8)
    server = serve(net, EXAMPLE / "model-config.yaml")
    for count, row in enumerate(rows, 1):
        found = server.ask(row.tolist())
        agree(torch.tensor(found["answer"]), net(row))
        assert found["openvino"] == {"calls": count, "fallbacks": []}
    assert "torch.compile: {'backend': 'openvino_fx'" in server.log.read_text()


def test_torchserve_with_compiling_off_answers_by_pytorch(serve: Any, tmp_path: Path) -> None:
    config = tmp_path / "off.yaml"
    config.write_text((EXAMPLE / "model-config.yaml").read_text().replace("enable: true", "enable: false"))
    net, row = model(), torch.randn(8)
    found = serve(net, config).ask(row.tolist())
    agree(torch.tensor(found["answer"]), net(row))
    assert found["openvino"] == {"calls": 0, "fallbacks": []}
