"""Networks beside the model, called in the middle of a generation: what takes long is accelerated, and nothing is kept of it."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.hosts.webui.conftest import ALL, TITLE, arguments, engine_stats, ran, ran_text


class Upscaler(torch.nn.Module):
    """Convolutions, then each pixel twice."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 3, 3, padding=1)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.interpolate(self.first(x).relu(), scale_factor=2.0)
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3) + 0.1 * self.second(hidden)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch, host: SimpleNamespace) -> None:
    """Every call takes long, and nothing is known of earlier ones."""
    from ov_backend.hosts.webui import measurements
    from ov_backend.hosts.webui.other_networks import other_networks

    monkeypatch.setattr(measurements, "LONG_CALL_S", 0.0)
    monkeypatch.setattr(other_networks, "_measurements", measurements.Measurements())
    monkeypatch.setattr(other_networks._measurements, "open", lambda folder: None)


@pytest.fixture
def after_sampling(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], list[Any]]:
    """Call a function in each generation once its pictures are sampled; returns the list of its results."""

    def install(function: Callable[[], Any]) -> list[Any]:
        results: list[Any] = []
        sample = host.processing._sample

        def sampled(*args: Any) -> Any:
            latent = sample(*args)
            with torch.inference_mode():
                results.append(function())
            return latent

        monkeypatch.setattr(host.processing, "_sample", sampled)
        return results

    return install


def tiles(count: int = 3) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.rand(1, 3, 24, 24, generator=generator)


def upscaled(network: torch.nn.Module) -> list[np.ndarray[Any, Any]]:
    return [network(tile).clamp_(0, 1).numpy() for tile in tiles()]


def test_the_first_call_tells_the_time_and_the_later_ones_run_in_openvino(
    host: SimpleNamespace, long: None, after_sampling: Any
) -> None:
    network = Upscaler()
    results = after_sampling(lambda: upscaled(network))
    host.processing.generate(prompt="a cat")
    first = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert engine_stats()["Upscaler"]["calls"] == 2
    second = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert (engine_stats()["Upscaler"]["calls"], engine_stats()["Upscaler"]["compiles"]) == (3, 0)
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], atol=1e-5)
    for picture in (first, second):
        assert ran(picture) == ran_text(*ALL, "Upscaler")


def test_what_is_quick_is_left_alone(host: SimpleNamespace, after_sampling: Any) -> None:
    network = Upscaler()
    after_sampling(lambda: upscaled(network))
    for _ in range(2):
        assert ran(host.processing.generate(TITLE, arguments(), prompt="a cat")) == ran_text(*ALL)


def test_the_setting_switches_it_off(host: SimpleNamespace, long: None, after_sampling: Any) -> None:
    host.shared.opts.openvino_other_networks = False
    network = Upscaler()
    after_sampling(lambda: upscaled(network))
    assert ran(host.processing.generate(TITLE, arguments(), prompt="a cat")) == ran_text(*ALL)


def test_a_network_that_is_loaded_anew_is_freed_and_compiles_nothing_again(
    host: SimpleNamespace, long: None, after_sampling: Any
) -> None:
    references: list[weakref.ref[Any]] = []

    def load_and_upscale() -> Any:
        network = Upscaler(seed=3)
        references.append(weakref.ref(network))
        return upscaled(network)

    results = after_sampling(load_and_upscale)
    for _ in range(3):
        host.processing.generate(TITLE, arguments(), prompt="a cat")
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert (engine_stats()["Upscaler"]["compiles"], engine_stats()["Upscaler"]["calls"]) == (0, 3)
    np.testing.assert_allclose(results[2], results[0], atol=1e-5)


def test_equal_classes_with_other_weights_give_other_results(host: SimpleNamespace, long: None, after_sampling: Any) -> None:
    networks = [Upscaler(seed) for seed in range(4)]
    results = after_sampling(lambda: [upscaled(network) for network in networks])
    for _ in range(2):
        host.processing.generate(TITLE, arguments(), prompt="a cat")
    host.processing.generate(prompt="a cat")
    np.testing.assert_allclose(results[1], results[2], atol=1e-5)
    assert np.abs(np.array(results[1][0]) - np.array(results[1][1])).max() > 1e-3


def test_a_call_from_another_thread_is_pytorchs(host: SimpleNamespace, long: None, after_sampling: Any) -> None:
    network = Upscaler()

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: upscaled(network))
        thread.start()
        thread.join()

    after_sampling(elsewhere)
    for _ in range(2):
        assert ran(host.processing.generate(TITLE, arguments(), prompt="a cat")) == ran_text(*ALL)


class Wrapper(torch.nn.Module):
    """Calls a network beside the model in a forward of its own, which nothing can trace."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x) if float(x.sum()) > 0 else x


def test_what_cannot_be_traced_runs_by_its_blocks(host: SimpleNamespace, long: None, after_sampling: Any) -> None:
    network = Wrapper(Upscaler())
    results = after_sampling(lambda: upscaled(network))
    host.processing.generate(prompt="a cat")
    on = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert ran(on) == ran_text(*ALL, "Wrapper by its blocks")
    assert "Wrapper by its blocks: " in on.comments
    np.testing.assert_allclose(results[1], results[0], atol=1e-5)
    assert network.calls == 6


def test_what_takes_longer_by_its_blocks_is_left_to_pytorch_and_says_so(
    host: SimpleNamespace, long: None, after_sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.hosts.webui import other_networks

    seconds, moments = [0.5], [0.0]

    def clock() -> float:  # each look at it comes so many seconds after the one before
        moments[0] += seconds[0]
        return moments[0]

    monkeypatch.setattr(other_networks, "time", SimpleNamespace(perf_counter=clock))
    results = after_sampling(lambda: upscaled(Wrapper(Upscaler(7))))  # loaded anew for each picture
    host.processing.generate(TITLE, arguments(), prompt="a cat")
    seconds[0] = 1.5
    second = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert "Wrapper by its blocks" in ran(second), "the first picture compiled, which is no measure"
    third = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert ran(third) == ran_text(*ALL)
    assert "Wrapper in PyTorch: by its blocks it took 3.0 times as long." in third.comments
    np.testing.assert_allclose(results[2], results[1], atol=1e-5)


def test_a_lower_precision_must_be_exact_enough(
    host: SimpleNamespace, long: None, after_sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.hosts.webui import other_networks as module

    monkeypatch.setattr(module, "_chooses_precision", lambda engine: True)
    monkeypatch.setattr(module, "LEAST_PSNR", 1000.0)
    network = Upscaler()
    results = after_sampling(lambda: upscaled(network))
    host.processing.generate(prompt="a cat")
    on = host.processing.generate(TITLE, arguments("auto"), prompt="a cat")
    assert "Upscaler is computed in f32: " in on.comments
    np.testing.assert_allclose(results[1], results[0], atol=1e-5)
    compiled = module.session.engine.compiled
    held = [key for key in compiled if compiled.peek(key).value.network == "Upscaler"]
    assert len(held) == 1, "what was compiled for the comparison is not kept"


def test_what_is_called_once_in_a_generation_is_compared_in_the_second_one(
    host: SimpleNamespace, long: None, after_sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.hosts.webui import other_networks as module

    monkeypatch.setattr(module, "_chooses_precision", lambda engine: True)
    network, tile = Upscaler(seed=7), next(tiles())
    results = after_sampling(lambda: network(tile).numpy())
    texts = [ran(host.processing.generate(TITLE, arguments("auto"), prompt="a cat")) for _ in range(4)]
    assert texts == [ran_text(*ALL)] * 2 + [ran_text(*ALL, "Upscaler")] * 2
    host.processing.generate(prompt="a cat")
    for result in results[:-1]:
        assert np.abs(result - results[-1]).max() < 0.02


def test_an_interrupt_during_a_compile_leaves_the_call_to_pytorch(
    host: SimpleNamespace, long: None, after_sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.core.errors import Interrupted
    from ov_backend.engine.blocks.blocks import RootNetwork

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise Interrupted("interrupted")

    monkeypatch.setattr(RootNetwork, "__call__", interrupted)
    network = Upscaler()
    results = after_sampling(lambda: upscaled(network))
    host.processing.generate(prompt="a cat")
    on = host.processing.generate(TITLE, arguments(), prompt="a cat")
    np.testing.assert_array_equal(results[1], results[0])
    assert ran(on) == ran_text(*ALL)


def test_ever_new_sizes_are_not_all_compiled(host: SimpleNamespace, long: None, after_sampling: Any) -> None:
    network = Upscaler(6)
    after_sampling(lambda: [network(torch.rand(1, 3, 8, width)) for width in range(8, 28, 2)])
    host.processing.generate(TITLE, arguments(), prompt="a cat")
    host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert engine_stats()["Upscaler"]["calls"] == 4


def test_an_upscaler_has_the_webuis_name_and_its_tiles_are_counted(
    host: SimpleNamespace, long: None, after_sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.hosts.webui.other_networks import other_networks

    network, scaler, seen = Upscaler(5), object(), []
    images = types.ModuleType("modules.images")
    images.split_grid = lambda: SimpleNamespace(tiles=[(0, 24, [(0, 24, 0)] * 3)])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "modules.images", images)
    listed = [SimpleNamespace(name="R-ESRGAN 4x+", scaler=scaler, data_path="x.pth")]
    monkeypatch.setattr(host.shared, "sd_upscalers", listed, raising=False)

    def upscale(*_: Any) -> None:
        images.split_grid()
        for tile in tiles():
            network(tile)
            seen.append(host.shared.state.textinfo)

    named = other_networks.upscaling.named(upscale)
    after_sampling(lambda: named(scaler, None, 4, "x.pth"))
    on = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert seen[0] == "R-ESRGAN 4x+, tile 1 of 3"
    assert "R-ESRGAN 4x+" in ran(on)
    assert other_networks.upscaling.name == ""


@pytest.mark.parametrize("channels,span,expected", [(3, 0.01, 60.0), (3, 2.0, 66.0), (8, 0.01, 20.0)])
def test_the_peak_is_what_results_span_but_at_least_one_in_a_picture(channels: int, span: float, expected: float) -> None:
    from ov_backend.hosts.webui.measurements import decibels, is_plain

    result = torch.linspace(0.5, 0.5 + span, 64 * channels, dtype=torch.float64).reshape(1, channels, 8, 8)
    assert decibels([result + 0.001], [result]) == pytest.approx(expected, abs=0.1)
    assert is_plain([result]) == (span < 1 and channels == 3)


def test_a_plain_part_of_a_picture_decides_for_its_own_generation_alone(
    host: SimpleNamespace, long: None, after_sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.hosts.webui import other_networks as module

    monkeypatch.setattr(module, "_chooses_precision", lambda engine: True)
    network, plain, rich, found = Upscaler(seed=9), torch.full((1, 3, 8, 8), 0.5), next(tiles()), [40.0, 60.0]
    monkeypatch.setattr(module, "decibels", lambda *results: found.pop(0))
    after_sampling(lambda: [network(tile) for tile in (plain, plain)])
    first = host.processing.generate(TITLE, arguments("auto"), prompt="a cat")
    assert "Upscaler is computed in f32: " in first.comments
    after_sampling(lambda: [network(tile) for tile in (rich, rich)])
    second = host.processing.generate(TITLE, arguments("auto"), prompt="a cat")
    assert "is computed in f32" not in second.comments
    assert "Upscaler" in ran(second)


def test_measurements_are_kept_for_the_next_process(tmp_path: Any, long: None) -> None:
    from ov_backend.hosts.webui.measurements import Measurements

    first = Measurements()
    first.open(tmp_path)
    first.note_seconds("kind", 10, 2.0)
    first.note_psnr("content", 48.5)
    first.note_seconds("divided", 10, 2.0)
    first.note_divided("divided", 10, 5.0, compiled=False)
    first.end_run()
    second = Measurements()
    second.open(tmp_path)
    assert second.is_long("kind", 1)
    assert second.psnr("content") == 48.5
    assert (second.slower("divided"), second.is_long("divided", 10)) == (2.5, False)
    (tmp_path / "other_networks.json").write_text('{"seconds": {"kind": "x"}, "psnr": 3}')
    third = Measurements()
    third.open(tmp_path)
    assert third.psnr("content") is None
