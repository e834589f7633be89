"""An exception that is not this package's reaches the caller, wherever it is raised; nothing is lost by it."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

import ov_backend
from ov_backend import Settings
from ov_backend.core import tracing_lock
from ov_backend.core.errors import is_failure
from ov_backend.engine.ahead.ahead import AheadWorker
from ov_backend.engine.engine import Engine, Network
from ov_backend.engine.worker import Worker
from ov_backend.guards import autocast
from ov_backend.torch_compile.backend import openvino_fx
from ov_backend.torch_compile.side_effects import analyze

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers")
_OPTIONS = {"precision": "f32", "model_caching": False}
_STAGES = ("read", "capture", "convert", "compile")


class TimeIsUp(Exception):
    """As the handlers of Celery and of decorators raise."""


class TimeIsUpAtRunTime(RuntimeError):
    """Of the class of OpenVINO's own errors."""


@pytest.fixture
def handled() -> Iterator[list[type[BaseException]]]:
    """What the signal's handler raises next, from the end; it raises once for each."""
    raised: list[type[BaseException]] = []

    def handler(number: int, frame: FrameType | None) -> None:
        del number, frame
        if raised:
            raise raised.pop()("of the handler")

    before = signal.signal(signal.SIGALRM, handler)
    yield raised
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval()


def network_with(progress: Callable[[str], None], module: nn.Module, interrupted: Callable[[], bool] | None = None) -> Network:
    settings = Settings(**_OPTIONS, fallback="raise")
    return Engine(settings, progress=lambda _, stage, __: progress(stage), interrupted=interrupted).network("net", module)


@pytest.mark.parametrize("kind", [TimeIsUp, TimeIsUpAtRunTime, TimeoutError, KeyError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("stage", _STAGES)
def test_what_a_handler_raises_during_a_stage_reaches_the_caller_and_the_compile_goes_on(
    stage: str, kind: type[BaseException], handled: list[type[BaseException]]
) -> None:
    main = threading.get_ident()

    def progress(begins: str) -> None:
        if begins == stage and not raised:
            raised.append(1)
            signal.pthread_kill(main, signal.SIGALRM)

    raised: list[int] = []
    handled.append(kind)
    module, x = net(), torch.randn(2, 8)
    network = network_with(progress, module)
    with pytest.raises(kind, match="of the handler"):
        network(x)
    torch.testing.assert_close(network(x), module(x), rtol=0, atol=1e-4)
    assert network.statistics.compiles in ((1, 2) if stage == "capture" else (1,))  # what changes beside a trace drops it
    assert not network.statistics.fallbacks


@pytest.mark.parametrize("stage", _STAGES)
def test_what_a_callback_raises_reaches_the_caller(stage: str) -> None:
    def progress(begins: str) -> None:
        if begins == stage and not raised:
            raised.append(1)
            raise RuntimeError("of the callback")

    raised: list[int] = []
    module, x = net(), torch.randn(2, 8)
    network = network_with(progress, module)
    with pytest.raises(RuntimeError, match="of the callback"):
        network(x)
    torch.testing.assert_close(network(x), module(x), rtol=0, atol=1e-4)


def test_what_the_function_raises_that_asks_for_an_interruption_reaches_the_caller() -> None:
    network = network_with(lambda stage: None, net(), interrupted=lambda: bool([].index(1)))
    with tracing_lock.LOCK:
        thread_result: list[object] = []

        @torch.no_grad()
        def call() -> None:
            try:
                thread_result.append(network(torch.ones(2, 8)))
            except Exception as error:
                thread_result.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert isinstance(thread_result[0], ValueError)


def test_a_call_that_waits_for_another_threads_trace_can_be_left(handled: list[type[BaseException]]) -> None:
    module, x, leave = net(), torch.randn(2, 8), threading.Event()
    network = network_with(lambda stage: None, module)

    def hold() -> None:
        with tracing_lock.LOCK:
            begun.set()
            leave.wait()

    begun = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    handled.append(TimeIsUp)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(TimeIsUp):
        network(x)
    leave.set()
    thread.join()
    torch.testing.assert_close(network(x), module(x), rtol=0, atol=1e-4)


def accelerated(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    ov_backend.accelerate({"net": module}, Settings(**_OPTIONS))
    return module


def dynamo_graph(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The backend without Dynamo, which swallows some exceptions while it compiles."""
    function = openvino_fx(symbolic_trace(module), [torch.ones(1, 8)], options=_OPTIONS)

    def call(x: torch.Tensor) -> torch.Tensor:
        result = function(x)
        return result if isinstance(result, torch.Tensor) else result[0]

    return call


@pytest.mark.parametrize("entry", [accelerated, dynamo_graph])
def test_what_a_handler_raises_at_any_moment_reaches_the_caller(
    entry: Callable[[nn.Module], Callable[[torch.Tensor], torch.Tensor]],
    handled: list[type[BaseException]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator, plain = random.Random(0), net()
    ignored: list[object] = []  # by Python itself: the callback of a weak reference was running
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: ignored.append(unraisable.exc_type))
    seen = 0
    for number in range(90):
        if number % 30 == 0:
            module = net()
            module.load_state_dict(plain.state_dict())
            call = entry(module)
        x = torch.randn(1 + number % 30 // 10, 8)
        kind = generator.choice([TimeIsUp, TimeIsUpAtRunTime, TypeError, TimeoutError])
        handled[:] = [kind]
        seconds = generator.choice([generator.uniform(1e-5, 1e-3), generator.uniform(1e-5, 0.1)])
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            while handled:
                torch.testing.assert_close(call(x), plain(x), rtol=0, atol=1e-4)
        except Exception as error:  # Python may replace it while it begins a thread
            seen += kind in (type(error), type(error.__context__))
    assert seen + len(ignored) == 90
    torch.testing.assert_close(call(x), plain(x), rtol=0, atol=1e-4)
    fallbacks = [each["fallbacks"] for each in ov_backend.stats().values()]
    assert not any(fallbacks)


def test_what_a_handler_raises_while_a_job_ahead_is_asked_for_leaves_no_lock_held() -> None:
    ahead, free = AheadWorker(Worker()), threading.Event()

    def handler(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is threading.Condition.__enter__.__code__:
            raise TimeIsUp

    sys.setprofile(handler)
    try:
        with contextlib.suppress(TimeIsUp):
            assert "key" not in ahead
    finally:
        sys.setprofile(None)
    threading.Thread(target=lambda: (len(ahead), free.set()), daemon=True).start()
    assert free.wait(10)


def forgetting(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TimeIsUpAtRunTime


class Forgetting:
    def __call__(self, *given: object) -> None:
        del given
        raise TimeIsUpAtRunTime


def once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise TimeIsUpAtRunTime


def interrupted(x: torch.Tensor) -> torch.Tensor:
    if asked:
        asked.clear()
        signal.raise_signal(signal.SIGALRM)
    return x


def replacing(x: torch.Tensor) -> torch.Tensor:
    try:
        return interrupted(x)
    except RuntimeError as error:
        raise TimeIsUpAtRunTime("instead") from error


asked: list[bool] = []


@pytest.mark.parametrize("function", [interrupted, replacing])
@pytest.mark.parametrize("handler", [forgetting, Forgetting(), partial(Forgetting(), 1), Forgetting().__call__, once])
def test_a_handler_is_known_in_a_trace_whatever_it_does_with_its_variables(
    handler: Callable[..., None], function: Callable[[torch.Tensor], torch.Tensor], handled: list[type[BaseException]]
) -> None:
    asked.append(True)
    signal.signal(signal.SIGALRM, handler)
    with pytest.raises(TimeIsUpAtRunTime):
        analyze(function, [torch.ones(2, 8)], gradients=False)
    assert not analyze(function, [torch.ones(2, 8)], gradients=False).written


def raised_in(module: str, code: str) -> Exception:
    """What code raises that stands in a Python module of this name, seen from there."""
    variables: dict[str, object] = {"__name__": module}
    exec(f"def run():\n    try:\n        {code}\n    except Exception as error:\n        return error", variables)
    error = variables["run"]()  # type: ignore[operator]
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    ("module", "code", "expected"),
    [
        ("ov_backend.engine.lookup", "{}['key']", True),
        ("openvino", "raise RuntimeError('Infer Request is busy')", True),
        ("torch.nn", "raise RuntimeError", True),
        ("ov_backend.engine.lookup", "import ov_backend.core.errors; raise ov_backend.core.errors.CaptureError('no')", True),
        ("the_program", "{}['key']", False),
        ("__main__", "raise RuntimeError", False),
        ("ov_backend.engine.lookup", "raise TimeoutError('by another thread')", False),
        ("ov_backend.engine.lookup", "import queue; raise queue.Full('by another thread')", False),
    ],
)
def test_a_failure_is_of_this_packages_code_and_of_a_class_that_it_may_raise(module: str, code: str, expected: bool) -> None:
    assert is_failure(raised_in(module, code)) is expected


def test_an_exception_while_autocasts_are_counted_leaves_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    count = torch.autocast_increment_nesting

    def interrupted() -> int:
        count()
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "autocast_increment_nesting", interrupted)
    with pytest.raises(KeyboardInterrupt):
        autocast.of_program()
    depth = count()
    torch.autocast_decrement_nesting()
    assert depth == 1
