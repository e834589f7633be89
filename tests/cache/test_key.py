"""A catalogue of keys: what must differ, what must be the same, what must not matter; in this process and in others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.cache import key as cache_key
from ov_backend.cache.key import CacheKey, differing_ingredients
from ov_backend.capture import trace as capture
from ov_backend.compiler import graph_key
from ov_backend.fx_utils import graph_text
from ov_backend.guards.code_hash import function_fingerprint, module_fingerprint
from tests.helpers.small import Small

GIVEN: dict[str, Any] = {
    "code": "forward",
    "inputs": [("x", (1, 4), "float32")],
    "slots": [("w", (4, 4), "float32")],
    "settings": {"disabled_ops": ()},
    "versions": {"torch": "2.1.2", "openvino": "2026.4.1"},
    "extra": "",
}


def key(**changes: Any) -> CacheKey:
    return cache_key.cache_key(**{**GIVEN, **changes})


DIFFERENT: dict[str, dict[str, Any]] = {
    "other code": {"code": "forward2"},
    "a name of an input": {"inputs": [("y", (1, 4), "float32")]},
    "a shape of an input": {"inputs": [("x", (4, 1), "float32")]},
    "a dtype of an input": {"inputs": [("x", (1, 4), "bfloat16")]},
    "one more input": {"inputs": [*GIVEN["inputs"], ("y", (1, 4), "float32")]},
    "a static value": {"inputs": [GIVEN["inputs"], {"return_dict": False}]},
    "a shape of a weight": {"slots": [("w", (4, 5), "float32")]},
    "a dtype of a weight": {"slots": [("w", (4, 4), "float16")]},
    "the order of weights": {"slots": [("v", (4, 4), "float32"), ("w", (4, 4), "float32")]},
    "an operator disabled": {"settings": {"disabled_ops": ("aten.add.Tensor",)}},
    "another torch": {"versions": {"torch": "2.13.0", "openvino": "2026.4.1"}},
    "another OpenVINO": {"versions": {"torch": "2.1.2", "openvino": "2027.0.0"}},
    "what the host says": {"extra": "clip skip 2"},
}
INGREDIENT = {
    "code": "code", "inputs": "inputs", "slots": "slots", "settings": "settings", "versions": "versions", "extra": "extra"
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_must_differ_does_and_says_why(what: str) -> None:
    changed = key(**DIFFERENT[what])
    assert changed.digest != key().digest
    assert differing_ingredients(key(), changed) == [INGREDIENT[next(iter(DIFFERENT[what]))]]


def test_no_two_of_the_catalogue_are_alike() -> None:
    keys = [key(), *(key(**changes) for changes in DIFFERENT.values())]
    assert len({k.digest for k in keys}) == len(keys)


def test_another_lowering_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(cache_key, "LOWERING_VERSION", cache_key.LOWERING_VERSION + 1)
    assert differing_ingredients(before, key()) == ["lowering"]


def test_what_must_not_matter_does_not() -> None:
    turned = dict(reversed(GIVEN["versions"].items()))
    assert key(versions=turned) == key()
    assert key(inputs=[["x", [1, 4], "float32"]]) == key()
    assert differing_ingredients(key(), key()) == []
    assert str(key()) == key().digest
    assert len(key().digest) == 32
    int(key().digest, 16)


def test_ingredients_cannot_run_into_each_other() -> None:
    assert key(code="ab", extra="c").digest != key(code="a", extra="bc").digest


def _graph_key(settings: Settings) -> CacheKey:
    return graph_key("code", [], [], settings)


SETTINGS_THAT_MATTER: dict[str, dict[str, Any]] = {"disabled_ops": {"disabled_ops": ["aten.add.Tensor"]}}
SETTINGS_THAT_DO_NOT: dict[str, dict[str, Any]] = {
    "precision": {"precision": "f32"},
    "config": {"config": {"NUM_STREAMS": 1}},
    "cache_dir": {"cache_dir": "/elsewhere"},
    "memory_mb": {"memory_mb": 5},
    "cache_mb": {"cache_mb": 5},
    "fallback": {"fallback": "raise"},
    "model_caching": {"model_caching": False},
}


@pytest.mark.parametrize("what", [*SETTINGS_THAT_MATTER, *SETTINGS_THAT_DO_NOT])
def test_settings_by_what_they_affect(what: str) -> None:
    changes = {**SETTINGS_THAT_MATTER, **SETTINGS_THAT_DO_NOT}[what]
    expected = ["settings"] if what in SETTINGS_THAT_MATTER else []
    assert differing_ingredients(_graph_key(Settings()), _graph_key(Settings(**changes))) == expected


def test_versions_are_those_of_this_process() -> None:
    assert dict(_graph_key(Settings()).ingredients)["versions"] == dict(_graph_key(Settings()).ingredients)["versions"]
    torch_version = torch.__version__
    try:
        before = _graph_key(Settings())
        torch.__version__ = "0.0.0"
        assert differing_ingredients(before, _graph_key(Settings())) == ["versions"]
    finally:
        torch.__version__ = torch_version


def _text(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> str:
    example = [torch.ones(shape or (2, 2)) for shape in shapes or ((2, 2), (2, 2))]
    gm = capture.trace(lambda slots, inputs: [function(*inputs)], [], example)
    return graph_text(gm)


TRAP_23: dict[str, Callable[..., torch.Tensor]] = {
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
    "a float beside it": lambda a, b: a + 0.10000000000000002,
}


def test_trap_23_arguments_and_edges_are_in_the_text() -> None:
    texts = {name: _text(function) for name, function in TRAP_23.items()}
    assert len(set(texts.values())) == len(texts)
    assert _text(lambda x, y: x * 2) == texts["x * 2"], "names of variables and functions do not matter"
    assert _text(lambda x, y: x * 2, (2, 3), (2, 2)) != texts["x * 2"]


SCRIPT = """
import sys
import torch
from ov_backend import Settings
from ov_backend.compiler import graph_key
from ov_backend.guards.code_hash import function_fingerprint, module_fingerprint
from tests.helpers.small import Small
from tests.cache.test_key import TRAP_23, _text
module = Small()
print(graph_key("code", {"b": 1, "a": 2}, [("w", (2,), "f")], Settings(disabled_ops=["b", "a"])))
print(module_fingerprint(module), function_fingerprint(module.forward))
print(_text(TRAP_23["a - b"]), _text(TRAP_23["a constant"]))
"""


def _in_a_process_of(seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120).stdout


def test_trap_23_keys_are_the_same_under_every_hash_seed() -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(_in_a_process_of, ("1", "12345"))
    assert len(first.splitlines()) > 3
    assert first == second


def test_a_fingerprint_follows_code_and_numbers_but_not_weights() -> None:
    module = Small(seed=1)
    before = module_fingerprint(module)
    assert module_fingerprint(Small(seed=2)) == before
    module.convolution.padding_mode = "circular"
    circular = module_fingerprint(module)
    module.convolution.padding_mode = "zeros"
    assert module_fingerprint(module) == before
    module.last.forward = lambda x: torch.nn.functional.linear(x, module.last.weight)  # type: ignore[method-assign]
    forward = module_fingerprint(module)
    del module.last.forward
    handle = module.last.register_forward_pre_hook(lambda m, args: args)
    hook = module_fingerprint(module)
    handle.remove()
    module.scale = 3.0
    assert len({before, circular, forward, hook, module_fingerprint(module)}) == 5


def test_functions_of_other_constants_have_other_fingerprints() -> None:
    assert function_fingerprint(lambda x: x * 2) != function_fingerprint(lambda x: x * 3)
    assert function_fingerprint(lambda a, b: a - b) != function_fingerprint(lambda a, b: b - a)
