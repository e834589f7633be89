"""A host of the routes, with jobs that wait, and a client that asks it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ov_backend.store.store import GraphStore
from ov_backend.ui import routes
from ov_backend.ui.choices import Choices
from ov_backend.ui.comparison import Comparison
from ov_backend.ui.controller import Controller, JobControl
from ov_backend.ui.status import Status

OWN_ADDRESS = "http://localhost:7860"
NASTY = "<img src=x onerror=alert(1)>"


class Host:
    """A controller whose jobs wait for the event ``go``."""

    def __init__(self, folder: Path) -> None:
        self.store = GraphStore(folder)
        self.go, self.requests, self.interrupts = threading.Event(), [], 0
        self.controller = Controller(Status(), lambda: self.store, self.precompile, self.compare, self.interrupt)

    def precompile(self, sizes: Any, batch: int, choices: Choices | None, control: JobControl) -> None:
        self.requests.append((list(sizes), batch, choices))
        for done, (width, height) in enumerate(sizes):
            control.step(done, f"Preparing {width}x{height}")
            self.go.wait(10)
        control.step(len(sizes), "")

    def compare(self, choices: Choices | None, control: JobControl) -> Comparison:
        raise RuntimeError(NASTY)

    def interrupt(self) -> None:
        self.interrupts += 1
        self.go.set()

    def wait(self) -> None:
        deadline = time.monotonic() + 10
        while self.controller.status.busy:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "graphs")


@pytest.fixture
def client(host: Host) -> Iterator[TestClient]:
    app = FastAPI()
    routes.add_routes(app, host.controller)
    with TestClient(app, base_url=OWN_ADDRESS) as test_client:
        yield test_client
