"""Free memory is given back to the system, and garbage is not collected while Dynamo compiles in another thread."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import torch._dynamo  # noqa: F401  # imports the modules that the test looks up in sys.modules

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
