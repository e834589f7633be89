"""Keys of stored graphs: which must differ, which must be equal, in this process and in others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.core.fx_utils import graph_text
from ov_backend.guards.walk import Walk
from ov_backend.model.compiler import text_key
from ov_backend.store import key as cache_key
from ov_backend.trace.capture import trace as capture
from tests.helpers.alone import HASH_SEED, alone
from tests.helpers.small import Small

INGREDIENTS: dict[str, Any] = {
    "text": "%0 placeholder",
    "call": [("x", (1, 4), "float32")],
    "slots": [("w", (4, 4), "float32")],
    "settings": {"disabled_ops": ()},
    "versions": {"torch": "2.1.2", "openvino": "2026.4.1"},
    "extra": "",
}


def key(**changes: Any) -> str:
    return cache_key.cache_key(**{**INGREDIENTS, **changes})


DIFFERENT: dict[str, dict[str, Any]] = {
    "another text": {"text": "%1 placeholder"},
    "a name of an input": {"call": [("y", (1, 4), "float32")]},
    "a shape of an input": {"call": [("x", (4, 1), "float32")]},
    "a dtype of an input": {"call": [("x", (1, 4), "bfloat16")]},
    "one more input": {"call": [*INGREDIENTS["call"], ("y", (1, 4), "float32")]},
    "a static value": {"call": [INGREDIENTS["call"], {"return_dict": False}]},
    "a shape of a weight": {"slots": [("w", (4, 5), "float32")]},
    "a dtype of a weight": {"slots": [("w", (4, 4), "float16")]},
    "the order of weights": {"slots": [("v", (4, 4), "float32"), ("w", (4, 4), "float32")]},
    "an operator disabled": {"settings": {"disabled_ops": ("aten.add.Tensor",)}},
    "another torch": {"versions": {"torch": "2.13.0", "openvino": "2026.4.1"}},
    "another OpenVINO": {"versions": {"torch": "2.1.2", "openvino": "2027.0.0"}},
    "anything else": {"extra": "blob 2"},
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_a_changed_ingredient_changes_the_key(change: str) -> None:
    changed = key(**DIFFERENT[change])
    assert changed != key()


def test_all_changes_give_different_keys() -> None:
    keys = [key(), *(key(**changes) for changes in DIFFERENT.values())]
    assert len(set(keys)) == len(keys)


def test_another_lowering_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(cache_key, "LOWERING_VERSION", cache_key.LOWERING_VERSION + 1)
    assert key() != before


def test_equal_ingredients_give_equal_keys() -> None:
    reordered = dict(reversed(INGREDIENTS["versions"].items()))
    assert key(versions=reordered) == key()
    assert key(call=[["x", [1, 4], "float32"]]) == key()
    assert len(key()) == 32
    int(key(), 16)


def test_ingredients_are_separated() -> None:
    assert key(text="ab", extra="c") != key(text="a", extra="bc")


def _graph() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(lambda x: x + 1)


def _graph_key(settings: Settings) -> str:
    return text_key(_graph(), [], [], settings)


SETTINGS_THAT_MATTER: dict[str, dict[str, Any]] = {"disabled_ops": {"disabled_ops": ["aten.add.Tensor"]}}
SETTINGS_THAT_DO_NOT: dict[str, dict[str, Any]] = {
    "precision": {"precision": "f32"},
    "config": {"config": {"NUM_STREAMS": 1}},
    "cache_dir": {"cache_dir": "/elsewhere"},
    "memory_mb": {"memory_mb": 5},
    "cache_mb": {"cache_mb": 5},
    "low_memory": {"low_memory": "on"},
    "fallback": {"fallback": "raise"},
    "model_caching": {"model_caching": False},
}


@pytest.mark.parametrize("setting", [*SETTINGS_THAT_MATTER, *SETTINGS_THAT_DO_NOT])
def test_settings_are_in_the_key_if_they_affect_the_graph(setting: str) -> None:
    changes = {**SETTINGS_THAT_MATTER, **SETTINGS_THAT_DO_NOT}[setting]
    assert (_graph_key(Settings()) != _graph_key(Settings(**changes))) == (setting in SETTINGS_THAT_MATTER)


def test_the_version_of_torch_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _graph_key(Settings())
    monkeypatch.setattr(torch, "__version__", "0.0.0")
    assert _graph_key(Settings()) != before


def _text(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> str:
    example = [torch.ones(shape or (2, 2)) for shape in shapes or ((2, 2), (2, 2))]
    gm = capture.trace(lambda slots, inputs: [function(*inputs)], [], example)
    return graph_text(gm)


DISTINCT_GRAPHS: dict[str, Callable[..., torch.Tensor]] = {
    "x * 2": lambda x, y: x * 2,
    "x * 3": lambda x, y: x * 3,
    "x * 2.0": lambda x, y: x * 2.0,
    "a - b": lambda a, b: a - b,
    "b - a": lambda a, b: b - a,
    "(a - b) - b": lambda a, b: (a - b) - b,
    "a - (a - b)": lambda a, b: a - (a - b),
    "sum 0": lambda a, b: a.sum(0),
    "sum 1": lambda a, b: a.sum(1),
    "softmax 0": lambda a, b: a.softmax(0),
    "softmax 1": lambda a, b: a.softmax(1),
    "a constant": lambda a, b: a + torch.tensor([1.0, 2.0]),
    "another constant": lambda a, b: a + torch.tensor([1.0, 3.0]),
    "a small float": lambda a, b: a + 0.1,
    "the next float": lambda a, b: a + 0.10000000000000002,
}


def test_the_text_of_a_graph_has_every_argument_and_edge() -> None:
    texts = {name: _text(function) for name, function in DISTINCT_GRAPHS.items()}
    assert len(set(texts.values())) == len(texts)
    assert _text(lambda x, y: x * 2) == texts["x * 2"], "names of variables and functions do not matter"
    assert _text(lambda x, y: x * 2, (2, 3), (2, 2)) != texts["x * 2"]


def keys_of_a_process() -> str:
    """Keys and the text of graphs, made in this process."""
    key = text_key(_graph(), [], [], Settings(disabled_ops=["b", "a"]), {"b": 1, "a": 2})
    return "\n".join([str(key), _fingerprint(Small()), *(_text(DISTINCT_GRAPHS[name]) for name in ("a - b", "a constant"))])


def test_keys_are_the_same_under_every_hash_seed() -> None:
    """In a new process with a seed of its own, and in one forked from a server with another."""
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    assert environment["PYTHONHASHSEED"] != HASH_SEED
    command = [sys.executable, "-c", "from tests.store.test_key import keys_of_a_process; print(keys_of_a_process())"]
    first = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120).stdout
    assert len(first.splitlines()) > 3
    assert first == alone(keys_of_a_process) + "\n"


def _fingerprint(module: torch.nn.Module) -> str:
    return Walk(module, [module.forward]).fingerprint


def _function_fingerprint(function: Callable[..., torch.Tensor]) -> str:
    return Walk(None, [function]).fingerprint


def test_a_fingerprint_follows_code_and_numbers_but_not_weights() -> None:
    module = Small(seed=1)
    before = _fingerprint(module)
    assert _fingerprint(Small(seed=2)) == before
    module.convolution.padding_mode = "circular"
    circular = _fingerprint(module)
    module.convolution.padding_mode = "zeros"
    assert _fingerprint(module) == before
    module.last.forward = lambda x: torch.nn.functional.linear(x, module.last.weight)  # type: ignore[method-assign]
    forward = _fingerprint(module)
    del module.last.forward
    handle = module.last.register_forward_pre_hook(lambda m, args: args)
    hook = _fingerprint(module)
    handle.remove()
    module.scale = 3.0
    assert len({before, circular, forward, hook, _fingerprint(module)}) == 5


def test_functions_of_other_constants_have_other_fingerprints() -> None:
    assert _function_fingerprint(lambda x: x * 2) != _function_fingerprint(lambda x: x * 3)
    assert _function_fingerprint(lambda a, b: a - b) != _function_fingerprint(lambda a, b: b - a)
