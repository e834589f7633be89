"""A host of the routes, with jobs that wait, and a client that asks it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ov_backend.store.store import GraphStore
from ov_backend.ui import host as ui_host
from ov_backend.ui import routes
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import Controller
from ov_backend.ui.status import Status

OWN_ADDRESS = "http://localhost:7860"
NASTY = "<img src=x onerror=alert(1)>"


@dataclass(frozen=True)
class Asked:
    """A request of the host below."""

    size: tuple[int, int] = (64, 64)
    batch: int = 1

    def with_seed(self, more: int) -> Asked:
        """It has no seed."""
        return self

    def warm_up(self) -> Asked:
        """It is short."""
        return self


class Host(ui_host.Host):
    """A host whose pictures wait for the event ``go``; without choices they cannot be made, unless there is one to give."""

    retry_advice = "press the button"
    cache_dir = engine = None

    def __init__(self, folder: Path) -> None:
        self.status, self.graphs = Status(), GraphStore(folder)
        self.go, self.requests, self.interrupts = threading.Event(), [], 0
        self.picture: Callable[[Choices | None], Any] | None = None
        self._lock = threading.Lock()
        self.controller = Controller(self)

    lock = property(lambda self: self._lock)

    def alone(self, function: Callable[[], Any]) -> Any:
        """Under the lock."""
        with self.lock:
            return function()

    def store(self) -> GraphStore:
        """Its own."""
        return self.graphs

    def choices(self) -> Choices:
        """The default."""
        return Choices()

    def prepares_ahead(self) -> bool:
        """Not here."""
        return False

    def last_request(self) -> Asked:
        """A small one."""
        return Asked()

    def request(self, size: Any = (64, 64), batch: int = 1, steps: int = 1) -> Asked:
        """One of this size."""
        return Asked(size, batch)

    def make(self, request: Asked, choices: Choices | None, ended: Any, steps_only: bool = False) -> Any:
        """Wait, and give what there is to give."""
        if self.picture is not None:
            return self.picture(choices)
        if choices is None:
            raise RuntimeError(NASTY)
        self.requests.append((request.size, request.batch, choices))
        self.go.wait(10)
        return None

    def interrupt(self) -> None:
        """Let it go on."""
        self.interrupts += 1
        self.go.set()

    def configure(self, choices: Choices) -> Any:
        """An engine in which int8 is used, and fits into memory beside the device's own precision."""
        statistics = SimpleNamespace(int8={"state": "on", "text": ""})
        forms = SimpleNamespace(own="bf16", statistics=statistics, describe=str, make_room=str)
        return SimpleNamespace(both_forms=lambda: {"unet": forms})

    def denoiser(self) -> Any:
        """There is none."""

    def networks(self, calls: Any, choices: Choices) -> list[Any]:
        """There are none."""
        return []

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
