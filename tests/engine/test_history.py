"""What runs have called is remembered in the store, bounded and checked, and prepared when the same is asked for again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.core.tensors import TensorSpec
from ov_backend.engine.ahead.history import History, RememberedCall, RememberedRun, Run, kind_of, match
from ov_backend.engine.engine import Engine
from ov_backend.engine.network import Network
from ov_backend.guards.signature import Signature
from tests.helpers.small import Small, assert_right, counts, inputs

Strict = Callable[..., Settings]


def run_of(request: str, side: int = 8) -> RememberedRun:
    signature = Signature((TensorSpec("x", (1, 4, side, side), "float32"),), "{}")
    return RememberedRun(request, (RememberedCall("unet", "ab", 0, signature),))


def begin(engine: Engine, request: str, network: Network) -> None:
    engine.prepare_ahead(engine.begin_run(network.kind, request), [network])


def history(strict: Strict) -> History:
    store = Engine(strict(low_memory="off")).store
    assert store is not None
    return History(store)


def test_a_run_of_another_process_is_prepared(strict: Strict) -> None:
    for is_prepared in (False, True):
        engine, module = Engine(strict(low_memory="off")), Small()
        network = engine.network("unet", module)
        begin(engine, "8x8", network)
        assert engine.resources.ahead.wait(60)
        assert (engine.compiled.bytes > 0) == is_prepared
        assert_right(network, module, *inputs())
        engine.end_run()
        assert counts(network) == (1, 1)


def test_a_run_is_prepared_once_all_that_it_called_is_compiled(strict: Strict) -> None:
    modules = {"unet": Small(), "vae_decode": Small()}
    with torch.no_grad():
        modules["unet"].matrix.weight.add_(1)  # else one compile would do for both
    for compiles in (True, False):  # the second process finds the graphs
        engine = Engine(strict(low_memory="off"))
        networks = {name: engine.network(name, module) for name, module in modules.items()}
        listed = list(networks.values())
        calls = engine.begin_run(networks["unet"].kind, "8x8")
        for network in listed if compiles else ():
            network(*inputs())
        engine.end_run()
    assert [call.role for call in calls] == ["unet", "vae_decode"]
    assert not engine.is_prepared(calls, listed)
    assert engine.prepare_ahead(calls[1:], listed) == 1
    assert engine.resources.ahead.wait(60)
    assert not engine.is_prepared(calls, listed), "the UNet is missing"
    assert engine.prepare_ahead(calls, listed) == 1
    assert engine.resources.ahead.wait(60)
    assert engine.is_prepared(calls, listed)
    assert not engine.is_prepared(calls, listed[:1]), "whose the other call is cannot be said"
    assert not engine.is_prepared(calls[1:], listed), "a UNet that ran by its blocks is not remembered"
    with torch.no_grad():
        modules["unet"].matrix.weight.add_(1)
    assert not engine.is_prepared(calls, listed)


def test_another_request_prepares_nothing(strict: Strict) -> None:
    engine, module = Engine(strict(low_memory="off")), Small()
    network = engine.network("unet", module)
    begin(engine, "8x8", network)
    network(*inputs())
    engine.end_run()
    engine.clear()
    begin(engine, "9x9", network)
    assert len(engine.resources.ahead) == 0
    engine.end_run()


def test_a_run_that_was_interrupted_is_not_remembered(strict: Strict) -> None:
    engine = Engine(strict(low_memory="off"))
    network = engine.network("unet", Small())
    begin(engine, "8x8", network)
    network(*inputs())
    engine.end_run(completed=False)
    assert history(strict).runs(network.kind) == []


def test_the_last_run_stands_first_and_each_request_once(strict: Strict) -> None:
    remembered = history(strict)
    for run in (run_of("a"), run_of("b"), run_of("a", side=16)):
        remembered.add("ab", run)
    assert remembered.runs("ab") == [run_of("a", side=16), run_of("b")]
    assert remembered.calls("ab", "b") == run_of("b").calls
    assert remembered.calls("ab", "c") == remembered.calls("cd", "a") == ()


def test_a_network_that_was_not_needed_again_stays_remembered(strict: Strict) -> None:
    remembered, unet = history(strict), run_of("a").calls[0]
    encoder, decoder = (RememberedCall(role, "cd", 0, unet.signature) for role in ("text_encoder", "vae_decode"))
    for calls in ((encoder, unet, decoder), (unet, decoder)):  # the prompt's encoding was kept by the host
        remembered.add("ab", RememberedRun("a", calls))
        assert remembered.calls("ab", "a") == (encoder, unet, decoder)
    remembered.add("ab", RememberedRun("b", (unet,)))
    assert remembered.calls("ab", "b") == (unet,)


def test_it_is_bounded(strict: Strict) -> None:
    remembered = history(strict)
    for number in range(40):
        remembered.add("ab", run_of(str(number)))
    assert [run.request for run in remembered.runs("ab")] == [str(number) for number in range(39, 15, -1)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "\xff",
        "[" * 100_000,
        '{"runs": [["a", [["u", "k", Infinity, [], ""]]]]}',
        '{"runs": 3}',
        '{"runs": [{}]}',
        '{"runs": [{"a": 1, "b": 2}]}',
        '{"runs": [["a", [["u", "k", 0, 3]]]]}',
    ],
)
def test_an_entry_that_makes_no_sense_is_nothing_remembered(content: str, strict: Strict) -> None:
    remembered = history(strict)
    remembered._store.put("ab", {"runs.json": content.encode("latin-1")})
    assert remembered.runs("ab") == []
    remembered.add("ab", run_of("a"))
    assert remembered.runs("ab") == [run_of("a")]


def test_it_holds_no_value_but_shapes_and_plain_arguments(strict: Strict) -> None:
    engine = Engine(strict(low_memory="off"))
    network = engine.network("unet", Small())
    begin(engine, "8x8", network)
    network(*inputs())
    engine.end_run()
    files = history(strict)._store.get(network.kind)
    assert files is not None
    ((request, calls),) = json.loads(files["runs.json"])["runs"]
    assert request == "8x8"
    assert calls[0][3] == [["x", [1, 4, 8, 8], "float32"], ["ids", [1, 7], "int64"]]


def test_networks_of_one_kind_are_told_apart_by_their_order(strict: Strict) -> None:
    engine = Engine(strict(low_memory="off"))
    base, refiner = engine.network("unet", Small(1)), engine.network("unet #2", Small(2))
    run = Run(base.kind, "8x8")
    signature = run_of("").calls[0].signature
    for network in (base, refiner, base):
        run.note(network, signature)
    assert [call.number for call in run.finished().calls] == [0, 1]
    assert [network for network, _ in match(run.finished().calls, [base, refiner])] == [base, refiner]
    assert [network for network, _ in match(run.finished().calls, [base])] == [base]


def test_the_kind_is_the_architecture_and_not_the_weights() -> None:
    assert kind_of(Small(1)) == kind_of(Small(2))
    assert kind_of(Small()) != kind_of(Small().half()) != kind_of(torch.nn.Linear(3, 3))
