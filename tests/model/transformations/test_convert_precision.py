"""Half-precision modules on the CPU: the right answer, and no third copy of their weights in memory."""

from __future__ import annotations

import logging
import mmap
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import psutil
import pytest
import torch

from ov_backend import Settings
from ov_backend.core import posix
from ov_backend.guards import checksums
from ov_backend.model.transformations import convert_precision
from ov_backend.model.transformations.convert_precision import WeightBuffer, weight_conversion
from tests.helpers.alone import alone
from tests.helpers.disk import resident
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
#: Relative to the same module in float32 (its weights are the half-precision ones): the outputs are rounded to halves,
#: and bfloat16 arithmetic rounds in every layer.
TOLERANCE = {
    (torch.float16, "f32"): 1e-3,
    (torch.float16, "bf16"): 3e-2,
    (torch.bfloat16, "f32"): 5e-3,
    (torch.bfloat16, "bf16"): 3e-2,
}
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
PRECISIONS = pytest.mark.parametrize("precision", ["f32", "bf16"])


class Mixed(torch.nn.Module):
    """Convolution, norm, attention and a float32 island, as in a Stable Diffusion UNet of half precision."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(4, width, 3, padding=1)
        self.norm = torch.nn.GroupNorm(32, width)
        self.large = torch.nn.Linear(width, width)  # over a mebibyte: shared, not copied
        self.last = torch.nn.Conv2d(width, 4, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.nn.functional.silu(self.norm(self.first(x)))
        tokens = self.large(h.flatten(2).transpose(1, 2))
        tokens = torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        wave = torch.cos(t[:, None].float() * torch.arange(4, dtype=torch.float32) / 4).to(x.dtype)
        return self.last(h + tokens.transpose(1, 2).reshape(h.shape)) + wave[:, :, None, None], wave


def case(dtype: torch.dtype) -> tuple[Mixed, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return Mixed().to(dtype).eval(), torch.randn(2, 4, 8, 8).to(dtype), torch.tensor([3.0, 801.0])


def in_float(module: Mixed, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = Mixed().eval()
    wide.load_state_dict(module.state_dict())
    with torch.no_grad():
        output: tuple[torch.Tensor, torch.Tensor] = wide(x.float(), t)
    return output


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected).norm() / expected.norm())


@PRECISIONS
@HALVES
@pytest.mark.parametrize("caching", [True, False], ids=["with a folder", "without"])
def test_half_precision_module(strict: Strict, dtype: torch.dtype, precision: str, caching: bool) -> None:
    module, x, t = case(dtype)
    network = engine_for(strict(precision=precision, model_caching=caching), module)
    for _ in range(2):
        outputs = network(x, t)
        assert [output.dtype for output in outputs] == [dtype, dtype]
        for output, expected in zip(outputs, in_float(module, x, t)):
            assert error(output, expected) < TOLERANCE[dtype, precision]
    assert network.statistics.calls == 2


@HALVES
def test_a_changed_weight_reaches_the_copy(strict: Strict, dtype: torch.dtype) -> None:
    module, x, t = case(dtype)
    network = engine_for(strict(precision="f32"), module)
    before = network(x, t)[0]
    with torch.no_grad():
        module.large.weight.mul_(-2)
    after, expected = network(x, t)[0], in_float(module, x, t)[0]
    assert error(after, expected) < TOLERANCE[dtype, "f32"] < error(before, expected) / 2
    with torch.no_grad():
        module.large.weight.div_(-2)
    assert torch.equal(network(x, t)[0], before)
    assert network.statistics.compiles == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_another_size_takes_the_weights_that_were_converted(
    strict: Strict, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x, t = case(dtype)
    network = engine_for(strict(precision="bf16"), module)
    network(x, t)
    monkeypatch.setattr(WeightBuffer, "__init__", lambda *_, **__: pytest.fail("weights are converted again"))
    larger = x.repeat(1, 1, 2, 2)
    outputs = network(larger, t)
    assert network.statistics.compiles == 2
    for output, expected in zip(outputs, in_float(module, larger, t)):
        assert error(output, expected) < TOLERANCE[torch.float16, "bf16"]


def test_changed_weights_are_converted_again_at_another_size(strict: Strict) -> None:
    module, x, t = case(torch.float32)
    network = engine_for(strict(precision="bf16"), module)
    network(x, t)
    address = module.large.weight.data_ptr()
    module.large.weight.data.mul_(-2)
    assert module.large.weight.data_ptr() == address
    larger = x.repeat(1, 1, 2, 2)
    assert error(network(larger, t)[0], in_float(module, larger, t)[0]) < TOLERANCE[torch.float16, "bf16"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_equal_weights_that_have_changed_places_are_not_mixed_up_at_another_size(strict: Strict, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.Linear(768, 768, bias=False) for _ in range(2))).to(dtype).eval()
    network, x = engine_for(strict(precision="bf16"), module), torch.randn(4, 768).to(dtype)
    network(x)
    first, second = (layer.weight.data for layer in module)
    content = first.clone()
    first.copy_(second)
    second.copy_(content)
    module[0].weight.data, module[1].weight.data = second, first
    larger = x.repeat(2, 1) * 2
    expected = larger.float() @ second.float().t() @ first.float().t()  # torch 2.1 multiplies no float16
    assert error(network(larger), expected) < TOLERANCE[torch.float16, "bf16"]


def test_a_write_that_no_look_shows_counts_at_another_size(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_PATIENCE", "_PATIENCE_AT_START"):  # everything was read a moment ago
        monkeypatch.setattr(checksums, patience, 1e9)
    module = torch.nn.Sequential(*(torch.nn.Linear(768, 768, bias=False) for _ in range(2))).eval()
    network, x = engine_for(strict(precision="bf16"), module), torch.randn(4, 768)
    network(x)
    module[1].weight.data[5, 3:] += 3
    assert network(x)[:, 5].norm() < module.forward(x)[:, 5].norm() / 2, "a look shows it"
    larger = x.repeat(2, 1)
    assert error(network(larger), module.forward(larger)) < TOLERANCE[torch.float16, "bf16"]


def test_nothing_is_left_in_the_folder(strict: Strict, tmp_path: Path) -> None:
    module, x, t = case(torch.float16)
    settings = strict(precision="f32")
    network = engine_for(settings, module)
    network(x, t)
    assert settings.cache_folder.is_dir()
    assert not list(settings.cache_folder.rglob("weights-*"))


def test_a_folder_that_cannot_be_used_costs_memory_only(strict: Strict, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").write_text("a file")
    with caplog.at_level(logging.WARNING):
        buffer = WeightBuffer(torch.float32, [torch.ones(1000, dtype=torch.float16)], tmp_path / "taken")
    assert "no file for them" in caplog.text
    assert torch.equal(buffer.convert(torch.ones(1000, dtype=torch.float16)), torch.ones(1000))


def test_a_full_disk_costs_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.arange(1000.0).half()
    monkeypatch.setattr(convert_precision, "SPARE_BYTES", 1 << 60)
    with caplog.at_level(logging.WARNING):
        buffer = WeightBuffer(torch.float32, [weight], tmp_path)
    assert "MiB are free there" in caplog.text
    placed = buffer.convert(weight)
    buffer.release()
    assert torch.equal(placed, weight.float())
    assert not list(tmp_path.iterdir())


def test_released_weights_are_read_from_the_file(tmp_path: Path) -> None:
    weights = [torch.randn(333, 77).half(), torch.randn(5).half(), torch.randn(64, 64).half().t()]
    buffer = WeightBuffer(torch.bfloat16, weights, tmp_path)
    placed = [buffer.convert(weight) for weight in weights]
    buffer.release()
    assert all(torch.equal(tensor, weight.to(torch.bfloat16)) for tensor, weight in zip(placed, weights))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("in_file", [True, False])
def test_packed_weights_are_given_back_once_the_device_owns_them(tmp_path: Path, in_file: bool) -> None:
    weight = torch.randn(1000, 1000)
    buffer = WeightBuffer(torch.bfloat16, [weight], tmp_path if in_file else None, packed=True)
    placed = buffer.convert(weight)
    buffer.release(owned=False)
    assert torch.equal(placed, weight.bfloat16())
    assert buffer.is_of(torch.bfloat16, [weight]) is in_file
    before = psutil.Process().memory_info().rss
    buffer.release(owned=True)
    assert before - psutil.Process().memory_info().rss > placed.nbytes / 2 or not placed.any()


@pytest.mark.skipif(sys.platform != "linux", reason="the pages are counted by Linux")
@pytest.mark.parametrize("in_file", [True, False])
def test_a_weight_gets_its_pages_at_once_and_the_next_one_none(
    tmp_path: Path, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate, got = posix.populate, []

    def noted(memory: mmap.mmap, start: int, end: int) -> None:
        populate(memory, start, end)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        got.append([resident(half) for half in whole.chunk(2)])

    monkeypatch.setattr(posix, "populate", noted)
    weight = torch.ones(1000, 1024)
    buffer = WeightBuffer(torch.bfloat16, [weight] * 2, tmp_path if in_file else None, packed=True)
    assert torch.equal(buffer.convert(weight), weight.bfloat16())
    assert got == [[weight.nbytes // 2, 0]]
    assert buffer._memory is not None
    populate(buffer._memory, weight.nbytes, weight.nbytes)  # nothing of an empty weight


@pytest.mark.parametrize(
    "dtypes,precision,expected",
    [
        ((torch.float32,), "bf16", None),
        ((torch.float16, torch.float32), "bf16", (torch.float16, torch.bfloat16)),
        ((torch.float16,), "f32", (torch.float16, torch.float32)),
        ((torch.float16,), "f16", None),
        ((torch.bfloat16,), "bf16", None),
        ((torch.bfloat16,), "f32", (torch.bfloat16, torch.float32)),
        ((torch.int64,), "f32", None),
    ],
    ids=str,
)
def test_which_weights_are_converted(dtypes: tuple[torch.dtype, ...], precision: str, expected: object) -> None:
    assert weight_conversion([torch.ones(4, dtype=dtype) for dtype in dtypes], precision) == expected


class Stack(torch.nn.Sequential):
    """64 MiB of weights in half precision; the biases make each layer an addmm, which has factors of one."""

    def __init__(self) -> None:
        super().__init__(*(torch.nn.Linear(1024, 1024) for _ in range(32)))


def _grown(settings: Settings) -> tuple[float, float]:
    module = Stack().half().eval().requires_grad_(False)
    small = torch.nn.Linear(4, 4).half().requires_grad_(False)
    engine_for(settings, small)(torch.ones(1, 4, dtype=torch.float16))  # what the device itself takes
    network = engine_for(settings, module)
    process = psutil.Process()
    before = process.memory_info().rss
    network(torch.ones(8, 1024, dtype=torch.float16))
    weights = sum(parameter.nbytes for parameter in module.parameters())
    return (process.memory_info().rss - before) / weights, float(network.statistics.compiles)


@pytest.mark.skipif(not hasattr(__import__("mmap"), "MADV_DONTNEED"), reason="pages are released on POSIX systems only")
def test_memory_holds_no_third_copy(strict: Strict) -> None:
    """In float32 the device's own layout is twice the half-precision weights; a copy in between would be twice again."""
    grown, compiles = alone(_grown, strict(precision="f32"))
    assert compiles == 1
    assert 1.9 < grown < 2.9
    grown, compiles = alone(_grown, strict(precision="bf16"))
    assert compiles == 1
    assert 0.9 < grown < 1.9


def half_model() -> ov.Model:
    x = ops.parameter([2, 3], np.float16)
    weight = ops.constant(np.arange(6, dtype=np.float16).reshape(3, 2))
    product = ops.matmul(x, weight, False, False)
    total = ops.add(product, ops.convert(ops.constant(np.int32(1)), "f16"))
    return ov.Model([total, ops.convert(total, "f32")], [x])


@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16], ids=str)
def test_inputs_and_results_keep_their_types(target: torch.dtype) -> None:
    model = half_model()
    convert_precision.convert_precision(model, torch.float16, target)
    assert [port.get_element_type() for port in (*model.inputs, *model.outputs)] == [ov.Type.f16, ov.Type.f16, ov.Type.f32]
    (product,) = (op for op in model.get_ordered_ops() if op.get_type_name() == "MatMul")
    assert product.get_element_type() == (ov.Type.f32 if target is torch.float32 else ov.Type.bf16)
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    result, wide = ov.compile_model(model, "CPU")([x]).values()
    np.testing.assert_array_equal(result, (x @ np.arange(6, dtype=np.float16).reshape(3, 2)) + 1)
    np.testing.assert_array_equal(wide, result.astype(np.float32))


def test_an_operator_that_keeps_its_type_is_named() -> None:
    x = ops.parameter([2, 3], np.float16)
    counts = ops.range(*(ops.constant(np.int64(value)) for value in (0, 3, 1)), "f16")
    counts.set_friendly_name("counts")
    model = ov.Model([ops.relu(x), ops.convert(counts, "i32")], [x])
    with pytest.raises(RuntimeError, match=r"counts \(Range\) stays in torch.float16"):
        convert_precision.convert_precision(model, torch.float16, torch.float32)


class ConvertedSum(torch.nn.Module):
    """A layer in float32 whose result goes on in float16; it has no half-precision weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).half() + torch.full((4,), 1.0, dtype=torch.half)


@PRECISIONS
def test_a_layer_keeps_its_bias_where_its_result_goes_on_in_float16(precision: str, strict: Strict) -> None:
    module, x = ConvertedSum(), torch.randn(2, 4)
    expected = module(x)
    actual = engine_for(strict(precision=precision), module)(x)
    assert torch.allclose(actual, expected, atol=2e-3 if precision == "f32" else 2e-2)
