"""A process that uses a graph store and nothing else: ``python store_worker.py ACTION FOLDER [...]``.

The store is loaded from its file, without the package around it, so that a process starts in a moment.
"""

from __future__ import annotations

import importlib
import logging
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).parents[2] / "ov_backend"
KEYS = [f"{i:032x}" for i in range(6)]


def say(*values: object) -> None:
    """One line for whoever started this process."""
    sys.stdout.write(" ".join(map(str, values)) + "\n")


def load() -> ModuleType:
    """The store's module; neither torch nor OpenVINO comes with it."""
    package = ModuleType("ov_backend")
    package.__path__ = [str(PACKAGE)]
    sys.modules["ov_backend"] = package  # its __init__ would import torch
    module = importlib.import_module("ov_backend.store.store")
    assert not {"torch", "openvino"} & set(sys.modules)
    return module


def files(key: str) -> dict[str, bytes]:
    """What is stored under a key: it can be told from the key alone whether it is whole."""
    generator = random.Random(key)
    return {"model.xml": key.encode() * 300, "model.bin": generator.randbytes(40_000), "graph.json": b"{}"}


def write_until_killed(store: Any, seed: int) -> None:
    """Put entries until killed at a random moment."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, random.Random(seed).uniform(1e-5, 8e-3))
    while True:
        for key in KEYS:
            store.put(key, files(key))


def kill(module: ModuleType, folder: Path, times: int) -> None:
    """Kill as many processes while they write; say how often one left half an entry under a temporary name."""
    half = 0
    for seed in range(times):
        child = os.fork()
        if not child:
            write_until_killed(module.GraphStore(folder, 200_000), seed)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert module.GraphStore(folder).check() == ({}, []), "half an entry is there"
        half += any(path.name.endswith(module.GRAPHS.temporary) for path in folder.glob("*"))
    say(half)


def kill_in_phase(store: Any, function: str, after: bool) -> None:
    """Put an entry and be killed just before or after the store calls a function of the system."""
    owner = Path if function in ("replace", "mkdir") else os
    original = getattr(owner, function)

    def killing(*args: Any, **kwargs: Any) -> Any:
        if after:
            original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, function, killing)
    store.put(KEYS[0], files(KEYS[0]))


def work(store: Any, seconds: float, seed: int) -> None:
    """Fill, read, verify and clear; every entry that is read must be whole."""
    generator = random.Random(seed)
    end = time.monotonic() + seconds
    got = 0
    while time.monotonic() < end:
        key = generator.choice(KEYS)
        action = generator.random()
        if action < 0.5:
            assert store.put(key, files(key))
        elif action < 0.95:
            found = store.get(key)
            assert found is None or found == files(key)
            got += found is not None
        else:
            store.clear()
    say(got)


def put_and_get(store: Any) -> None:
    """Say whether an entry could be put, and whether it could be had afterwards; every warning is on stderr."""
    for _ in range(3):
        put = store.put(KEYS[0], files(KEYS[0]))
    found = store.get(KEYS[0])
    assert found is None or found == files(KEYS[0])
    say(put, found is not None)


def main(action: str, folder: str, *rest: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    module = load()
    store = module.GraphStore(Path(folder), 200_000)
    if action == "kill":
        kill(module, Path(folder), int(rest[0]))
    elif action == "phase":
        kill_in_phase(store, rest[0], rest[1] == "after")
    elif action == "work":
        work(store, float(rest[0]), int(rest[1]))
    elif action == "small files only":  # a write past this fails, as on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(rest[0]), int(rest[0])))
        put_and_get(store)
    elif action == "as nobody":
        "".encode("cp437"), files(KEYS[0])  # zipfile and random import on first use, and nobody may not read root's Python
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        put_and_get(store)
    else:
        put_and_get(store)


if __name__ == "__main__":
    main(*sys.argv[1:])
