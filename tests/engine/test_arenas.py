"""Memory between operators is given back when a network's turn is over, and the answers stay right."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from unittest import mock

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine import arenas
from ov_backend.engine.arenas import Arenas
from ov_backend.engine.engine import Engine
from ov_backend.model.runtime.program import CompiledProgram
from tests.helpers.alone import alone


class Fake(CompiledProgram):
    """Counts how often its memory was given back."""

    def __init__(self, error: bool = False) -> None:
        self.given_back, self.error = 0, error

    def __call__(self, inputs: object) -> list[torch.Tensor]:
        return []

    def release_memory(self) -> None:
        self.given_back += 1
        if self.error:
            raise RuntimeError("busy")


def test_the_first_call_of_a_turn_gives_back_and_later_ones_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    text, unet, vae = Fake(), Fake(), Fake()
    shared = Arenas()
    for program in (text, unet, unet, unet):
        shared.run(program, [])
    assert (text.given_back, unet.given_back) == (1, 1)
    shared.run(vae, [])
    assert (text.given_back, unet.given_back, vae.given_back) == (1, 2, 1)
    monkeypatch.setattr(arenas, "_SECONDS", -1.0)  # as if time had passed
    shared.run(unet, [])
    assert (unet.given_back, vae.given_back) == (3, 1)


@pytest.mark.parametrize(("rested", "given_back"), [(0.5, 1), (1.5, 2)])
def test_a_turn_is_over_when_another_program_took_one(monkeypatch: pytest.MonkeyPatch, rested: float, given_back: int) -> None:
    """The decoder takes one second, and rests so many seconds, while the UNet is called twice."""
    now = 0.0
    monkeypatch.setattr(arenas, "time", mock.Mock(monotonic=lambda: now))
    shared, unet, vae = Arenas(), Fake(), Fake()

    def call(program: Fake, seconds: float) -> None:
        def take(_: Fake, inputs: object) -> list[torch.Tensor]:
            nonlocal now
            now += seconds
            return []

        monkeypatch.setattr(Fake, "__call__", take)
        shared.run(program, [])

    for program, seconds in ((vae, 1.0), (unet, rested / 2), (unet, rested / 2), (vae, 1.0)):
        call(program, seconds)
    assert (vae.given_back, unet.given_back) == (given_back, 1)


def test_networks_that_take_turns_at_every_step_keep_theirs() -> None:
    unet, controlnet = Fake(), Fake()
    shared = Arenas()
    for _ in range(4):
        for program in (controlnet, unet):
            shared.run(program, [])
    assert (controlnet.given_back, unet.given_back) == (1, 1)


def test_blocks_and_busy_programs_keep_theirs() -> None:
    shared, block, busy = Arenas(), Fake(), Fake(error=True)
    shared.run(block, [], is_block=True)
    shared.run(busy, [])
    assert (block.given_back, busy.given_back) == (0, 1)


class Wide(torch.nn.Module):
    """Has 64 MB between its operators."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Conv2d(4, 64, 3, padding=1), torch.nn.Conv2d(64, 4, 3, padding=1)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def resident(folder: str, gives_back: bool) -> tuple[int, float]:
    """MiB in memory after two networks have computed, and the largest error."""
    from benchmarks.bench_memory import status

    wide, small = Wide(), torch.nn.Linear(4, 4).requires_grad_(False)
    engine = Engine(Settings(precision="f32", cache_dir=folder, fallback="raise"))
    networks = engine.network("wide", wide), engine.network("small", small)
    x, y = torch.randn(1, 4, 512, 512, generator=torch.Generator().manual_seed(0)), torch.ones(2, 4)
    expected = wide(x)
    with contextlib.nullcontext() if gives_back else mock.patch.object(Arenas, "_over", return_value=[]):
        errors = [float((networks[0](x) - expected).abs().max()) for _ in range(3)]
        networks[1](y)
    return status("VmRSS"), max(errors)


def test_the_process_shrinks(tmp_path: object) -> None:
    (less, error), (more, _) = (alone(resident, str(tmp_path), gives_back) for gives_back in (True, False))
    assert error < 1e-4
    assert less < more - 48, f"{less} and {more} MiB"


def test_threads_may_compute_while_others_give_back(strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "_SECONDS", -1e9)  # every call is the first of a turn
    engine, modules = Engine(strict(precision="f32")), [Wide(), Wide()]
    x = torch.randn(1, 4, 64, 64)
    networks = [engine.network(f"net{i}", module) for i, module in enumerate(modules)]
    expected, errors = [module(x) for module in modules], []

    def use(i: int) -> None:
        errors.extend(float((networks[i](x) - expected[i]).abs().max()) for _ in range(20))

    threads = [threading.Thread(target=use, args=(i,)) for i in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 80
    assert max(errors) < 1e-4
