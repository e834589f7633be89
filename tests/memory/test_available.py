"""What the process has freed goes back to the system. While Dynamo compiles, no other thread collects garbage."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import torch._dynamo  # noqa: F401  # the test finds its modules in sys.modules

from ov_backend.memory.available import release_free_memory


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_no_other_thread_collects_while_dynamo_is_at_work() -> None:
    places = (sys.modules["torch._dynamo.convert_frame"], sys.modules["torch._dynamo.eval_frame"])
    lock = next(vars(place)["compile_lock"] for place in places if "compile_lock" in vars(place))
    gc.collect()
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        with lock:
            other = threading.Thread(target=release_free_memory)
            other.start()
            other.join()
            assert garbage() is not None
            release_free_memory()  # Dynamo's own thread may
        assert garbage() is None
    finally:
        gc.enable()
