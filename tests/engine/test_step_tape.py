"""A tape computes a step again, without the forward that computed it first, or says that it cannot."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend.engine.conditions import foreign_mode
from ov_backend.engine.int8.step_tape import Recorder, Tape, paused


class Block:
    """A block whose answer can be changed, as that of another precision is."""

    def __init__(self) -> None:
        self.factor, self.calls, self.state = 2.0, 0, "weights"

    def compute(self, x: torch.Tensor, *, bias: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"h": self.factor * x + bias[0]}

    def __call__(self, x: torch.Tensor, **kwargs: Any) -> dict[str, torch.Tensor]:
        with paused() as recorder:
            result = self.compute(x, **kwargs)
            if recorder is not None:
                recorder.note(self.compute, (x,), kwargs, result, lambda: self.state)
        return result


def recorded(forward: Callable[..., Any], *args: torch.Tensor) -> tuple[Tape | None, Any]:
    recorder = Recorder()
    with torch.no_grad(), recorder.recording():
        result = forward(*args)
    return recorder.finished(result), result


def step(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Views, writes into parts, a list of tensors, and a result that is a view."""
    buffer = torch.zeros(2, 6)
    buffer[:, :3] = block(x, bias=(torch.ones(3),))["h"]
    buffer[:, 3:].add_(x)
    x.mul_(0)  # what was given changes, too
    return torch.cat([buffer, buffer.sin()], 1).t()


def test_a_step_is_computed_again_with_other_answers_of_its_blocks() -> None:
    block, x = Block(), torch.randn(2, 3)
    expected = step(Block(), x.clone())
    tape, result = recorded(lambda given: step(block, given), x.clone())
    assert tape is not None
    for _ in range(2):
        (again,) = tape.replay()
        assert torch.equal(again, expected)
    assert torch.equal(result, expected)
    other = Block()
    block.factor = other.factor = 3.0
    assert torch.equal(tape.replay()[0], step(other, x.clone()))
    assert block.calls == 4
    assert not tape.changed
    block.state = "other weights"
    assert tape.changed


def test_weights_are_read_where_they_are_and_their_change_is_seen() -> None:
    block, layer = Block(), torch.nn.Linear(3, 3)
    tape, result = recorded(lambda x: layer(block(x, bias=(torch.zeros(3),))["h"]), torch.ones(1, 3))
    assert tape is not None
    assert not tape.changed
    with torch.no_grad():
        layer.weight.mul_(2)
    assert tape.changed
    assert torch.equal(tape.replay()[0], layer(torch.full((1, 3), 2.0)))
    assert torch.equal(tape.outputs[0], result)


def test_random_numbers_are_drawn_once_and_are_the_same_again() -> None:
    block = Block()

    def drawing(x: torch.Tensor) -> torch.Tensor:
        h = block(x, bias=(torch.randn(3),))["h"]
        return h + torch.randn_like(h) + torch.empty(3).normal_()

    torch.manual_seed(3)
    tape, result = recorded(drawing, torch.ones(1, 3))
    state = torch.get_rng_state()
    assert tape is not None
    assert torch.equal(tape.replay()[0], result)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(3)
    assert torch.equal(drawing(torch.ones(1, 3)), result)


@pytest.mark.parametrize(
    "leave",
    [
        lambda h: torch.from_numpy(h.numpy() + 1),
        lambda h: torch.tensor(h.tolist()),
        lambda h: h if h.sum() > 0 else -h,
        lambda h: h * float(h.max()),
        lambda h: torch.bernoulli(h.clamp(0, 1)),
        lambda h: torch.zeros(1, 3),
    ],
)
def test_where_values_leave_pytorch_there_is_no_tape(leave: Callable[[torch.Tensor], torch.Tensor]) -> None:
    block = Block()
    tape, _ = recorded(lambda x: leave(block(x, bias=(x,))["h"]), torch.ones(1, 3))
    assert tape is None


def test_numbers_that_come_from_what_was_given_do_no_harm() -> None:
    block = Block()
    tape, result = recorded(lambda x: block(x, bias=(x,))["h"] * float(x.max()), torch.full((1, 3), 2.0))
    assert tape is not None
    assert torch.equal(tape.replay()[0], result)


def test_what_is_computed_within_a_pause_sees_no_mode_and_is_not_noted() -> None:
    block = Block()

    def forward(x: torch.Tensor) -> torch.Tensor:
        assert foreign_mode()
        with paused() as recorder:
            assert recorder is not None
            assert not foreign_mode()
            with paused() as inner:
                assert inner is None, "a network inside of another one"
            given = x * 5
        assert foreign_mode()
        return block(x, bias=(given,))["h"]

    tape, result = recorded(forward, torch.ones(1, 3))
    assert not foreign_mode()
    assert tape is not None
    assert len(tape._steps) == 1
    assert torch.equal(tape.replay()[0], result)


def test_an_error_of_the_forward_is_its_own_and_leaves_nothing() -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        with paused():
            raise ValueError("the forward's")

    with pytest.raises(ValueError, match="the forward's"):
        recorded(failing, torch.ones(1))
    assert not foreign_mode()


def test_a_tape_holds_none_of_what_was_computed_on_the_way() -> None:
    block, on_the_way = Block(), []

    def forward(x: torch.Tensor) -> torch.Tensor:
        h = block(x, bias=(x,))["h"]
        on_the_way.append(weakref.ref(h))
        return h + 1

    tape, _ = recorded(forward, torch.ones(1, 3))
    gc.collect()
    assert tape is not None
    assert on_the_way[0]() is None


def test_a_step_that_writes_into_a_weight_is_not_followed() -> None:
    weight, block = torch.nn.Parameter(torch.ones(3)), Block()

    def writing(x: torch.Tensor) -> torch.Tensor:
        weight.view(-1)[:2].add_(1.0)
        return block(x, bias=(weight,))["h"] * weight

    recorder = Recorder()
    with torch.no_grad(), recorder.recording():
        result = writing(torch.ones(2, 3))
    assert recorder.wrote_weights
    assert recorder.finished(result) is None
    assert weight.tolist() == [2.0, 2.0, 1.0]


def test_memory_that_changes_hands_without_an_operator_is_not_followed() -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        h = block(x, bias=(torch.ones(3),))["h"]
        return copy.deepcopy(h) + h

    def assigned(x: torch.Tensor) -> torch.Tensor:
        h, y = block(x, bias=(torch.ones(3),))["h"], x.sin()
        y.data = h
        return y + h

    block = Block()
    for forward in (copied, assigned):
        assert recorded(forward, torch.ones(2, 3))[0] is None


def test_attention_without_dropout_is_computed_again_and_so_is_an_operator_without_autocast() -> None:
    def attending(x: torch.Tensor) -> torch.Tensor:
        h = block(x, bias=(torch.ones(8),))["h"]
        with torch.autocast("cpu", enabled=False):
            h = h @ torch.full((8, 8), 0.123)
        return torch.nn.functional.scaled_dot_product_attention(h, h, h)

    block = Block()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tape, result = recorded(attending, torch.randn(1, 1, 4, 8))
        assert tape is not None
        assert torch.equal(tape.replay()[0], result)
