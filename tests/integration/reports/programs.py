"""Reports of programs around a network: writes, copies, hooks, gradients, processes and memory."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import weakref
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F

import ov_backend
from tests.helpers.alone import alone
from tests.helpers.torch_compile import calls
from tests.integration.reports.report import Report, Ways


def _network() -> torch.nn.Module:
    torch.manual_seed(1)
    first = torch.nn.Conv2d(3, 8, 3, padding=1)
    rest = [torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 5)]
    return torch.nn.Sequential(first, *rest).eval()


def rows_renormalized_in_place(ways: Ways) -> None:
    """An embedding with ``max_norm`` returns renormalized rows and writes them into its weight, as in PyTorch."""
    ids = torch.tensor([[1, 3], [3, 0]])

    def results(model: Any, table: torch.nn.Embedding) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            table.weight.copy_(torch.arange(20.0).reshape(5, 4))
        return model(ids).clone(), model(ids).clone(), table.weight.detach().clone()

    table = torch.nn.Embedding(5, 4, max_norm=2.0).eval()
    expected = results(table, table)
    torch.testing.assert_close(results(ways.compiled(table, fallback="pytorch"), table), expected)
    with ways.accelerated(table, fallback="pytorch"):
        torch.testing.assert_close(results(table, table), expected)


def writes_through_an_inactive_dropout(ways: Ways) -> None:
    """A write into what an inactive dropout returned is a write into its input."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x, 0.5, False)
        y += y
        return y * x

    x, expected = torch.full((2, 2), 3.0), torch.full((2, 2), 3.0)
    result = f(expected)
    torch.testing.assert_close(ways.compiled(f, fallback="pytorch")(x), result)
    torch.testing.assert_close(x, expected)


def state_of_a_python_object(ways: Ways) -> None:
    """A branch that asks which object an attribute is, and a counter that the call changes, are as in PyTorch each time."""

    class State:
        def __init__(self) -> None:
            self.count = 0

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = State(), State()
            self.current = self.first
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.current.count += 1
            factor = 2.0 if self.current is self.first else 3.0
            self.current = self.second if self.current is self.first else self.first
            return self.layer(x) * factor + self.current.count

    def answers(model: Any, module: Model) -> list[Any]:
        module.first, module.second = State(), State()
        module.current = module.first
        found = [model(torch.ones(2, 4)) for _ in range(4)]
        return [*found, module.first.count, module.second.count]

    module = Model().eval()
    expected = answers(module, module)
    got = answers(ways.compiled(module, fallback="pytorch"), module)
    torch.testing.assert_close(got, expected)
    with ways.accelerated(module, fallback="pytorch"):
        torch.testing.assert_close(answers(module, module), expected)


def names_in_a_state_dict(ways: Ways) -> None:
    """An accelerated module keeps the names of its state dict, and a checkpoint loaded while it is accelerated counts at once."""
    model, other, x = _network(), _network(), torch.randn(2, 3, 8, 8)
    for weight in other.parameters():
        weight.mul_(1.5)
    names = list(model.state_dict())
    compiled = ways.compiled(model)
    with ways.accelerated(model):
        assert list(model.state_dict()) == names
        for assign in (False, True):
            model.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
            torch.testing.assert_close(model(x), other(x), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(compiled(x), other(x), rtol=1e-3, atol=1e-3)
    assert [name.removeprefix("_orig_mod.") for name in compiled.state_dict()] == names


def copies_of_an_accelerated_module(ways: Ways) -> None:
    """A deep copy, a pickle and ``torch.save`` of an accelerated or compiled module answer by their own weights."""
    model, x = _network(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    compiled = ways.compiled(model)
    compiled(x)
    with ways.accelerated(model):
        model(x)
        copies = [copy.deepcopy(model), copy.deepcopy(compiled), _saved(model)]
        with torch.no_grad():
            for each in copies:
                for weight in each.parameters():
                    weight.mul_(2)
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
        doubled = copy.deepcopy(_network())
        for weight in doubled.parameters():
            weight.mul_(2)
        for each in copies:
            torch.testing.assert_close(each(x), doubled(x), rtol=1e-3, atol=1e-3)


def _saved(model: torch.nn.Module) -> torch.nn.Module:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def memory_of_many_models(ways: Ways) -> None:
    """A model that was compiled or accelerated, and is deleted, is freed; a hundred of them do not add up."""
    alone(_load_and_unload, str(Path(ways.settings().cache_dir or ".")))


def _load_and_unload(folder: str) -> None:
    process = psutil.Process()
    x = torch.randn(1, 256)
    settings = ov_backend.Settings(precision="f32", fallback="raise", cache_dir=folder)
    sizes = []
    with torch.no_grad():
        for turn in range(40):
            model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).eval()
            gone = weakref.ref(model[0].weight)
            with ov_backend.accelerate({"net": model}, settings):
                model(x)
            torch.compile(model, backend="openvino_fx", options={"precision": "f32", "fallback": "raise"})(x)
            torch._dynamo.reset()
            ov_backend.reset()
            del model
            gc.collect()
            assert gone() is None, f"turn {turn}: the weights are still there"
            sizes.append(process.memory_info().rss / 2**20)
    assert sizes[-1] - sizes[len(sizes) // 2] < 20, f"MiB after each turn: {sizes}"


def cumulative_batch_norm(ways: Ways) -> None:
    """A batch norm with ``momentum=None`` keeps the mean of all batches in training, and the gradients of PyTorch."""
    batches = torch.randn(4, 8, 3)

    def trained(compile_it: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4, momentum=None), torch.nn.Linear(4, 2)).train()
        run = ways.compiled(model, fallback="pytorch") if compile_it else model
        with torch.enable_grad():
            for batch in batches:
                run(batch).square().mean().backward()
        model.eval()
        norm = model[1]
        grads = [weight.grad for weight in model.parameters()]
        return [norm.running_mean, norm.running_var, norm.num_batches_tracked, *grads, run(batches[0])]

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-3, atol=1e-4)


def hooks_that_keep_results(ways: Ways) -> None:
    """A hook of an inner layer that keeps what the layer returned gets the values of each call."""
    kept: dict[str, torch.Tensor] = {}

    def hook(module: torch.nn.Module, args: Any, result: torch.Tensor) -> None:
        kept["hidden"] = result

    model, plain = _network(), _network()
    model[1].register_forward_hook(hook)
    compiled = ways.compiled(model, fallback="pytorch")
    for run in (compiled, model):
        with ways.accelerated(model, fallback="pytorch"):
            for _ in range(3):
                x = torch.randn(2, 3, 8, 8)
                torch.testing.assert_close(run(x), plain(x), rtol=1e-3, atol=1e-3)
                torch.testing.assert_close(kept["hidden"], plain[:2](x), rtol=1e-3, atol=1e-3)


def jacobians_of_compiled_functions(ways: Ways) -> None:
    """``vmap``, ``jacrev``, ``jvp`` and ``grad`` of a compiled function, or within one, give eager's values and shapes."""

    def phi(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.exp(-torch.square(x - 4 * t) / (4 * 0.07 * (t + 1)))

    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        slope, value = torch.func.jacrev(lambda x: (phi(x, t),) * 2, has_aux=True)(x + 3)
        return -(0.14 / value) * slope + 4

    x, t = torch.linspace(-0.5, 0.5, 8), torch.tensor(0.7)
    outer = torch.func.vmap(f, in_dims=(0, None))
    torch.testing.assert_close(ways.compiled(outer, fallback="pytorch")(x, t), outer(x, t), rtol=1e-3, atol=1e-3)
    inner = ways.compiled(phi, fallback="pytorch")
    for transform in (torch.func.vmap, torch.func.jacrev):
        torch.testing.assert_close(transform(inner)(x, t.expand(8)), transform(phi)(x, t.expand(8)), rtol=1e-3, atol=1e-3)
    gradient = torch.func.grad(lambda x: phi(x, t).sum())
    torch.testing.assert_close(ways.compiled(gradient, fallback="pytorch")(x), gradient(x), rtol=1e-3, atol=1e-3)
    tangent = torch.func.jvp(lambda x: phi(x, t), (x,), (torch.ones_like(x),))
    got = ways.compiled(lambda x: torch.func.jvp(lambda x: phi(x, t), (x,), (torch.ones_like(x),)), fallback="pytorch")(x)
    torch.testing.assert_close(got, tangent, rtol=1e-3, atol=1e-3)


def calls_in_a_forked_process(ways: Ways) -> None:
    """A process forked after a compiled model has answered gets answers too, and ends."""
    model, x = _network(), torch.randn(2, 3, 8, 8)
    compiled = ways.compiled(model, fallback="pytorch")
    with ways.accelerated(model, fallback="pytorch") as counts:
        expected = model(x)
        compiled(x)
        assert counts("calls") == calls() == 1
        if "fork" not in multiprocessing.get_all_start_methods():
            return
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(theirs, [compiled, model], x))
        process.start()
        assert ours.poll(120), "no answer in two minutes"
        for got in ours.recv():
            torch.testing.assert_close(torch.tensor(got), expected, rtol=1e-3, atol=1e-3)
        process.join(60)
        assert process.exitcode == 0


def _answer(pipe: Any, models: list[Any], x: torch.Tensor) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        pipe.send([model(x).tolist() for model in models])


def folders_that_cannot_be_written(ways: Ways) -> None:
    """A cache folder that cannot be made, or holds blanks and accents, costs no answer."""
    model, x = _network(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    root = Path(str(ways.settings().cache_dir))
    root.mkdir(parents=True)
    file = root / "a file"
    file.write_text("")
    for folder in (file / "below", root / "with blanks, \u00e9 and \u6a21\u578b", Path("/proc/nothing here")):
        with ways.accelerated(model, cache_dir=str(folder)) as counts:
            torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
            assert counts("calls") == 1
    ov_backend.reset()
    blobs = {"CACHE_DIR": os.fspath(root / "blobs \u00e9")}
    compiled = ways.compiled(model, model_caching=True, cache_dir=str(file / "below"), config=blobs)
    torch.testing.assert_close(compiled(x), expected, rtol=1e-3, atol=1e-3)


def norms_of_chosen_rows(ways: Ways) -> None:
    """A batch norm of rows that a mask chooses, written back, trains as in PyTorch with dynamic sizes."""

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(8)

        def forward(self, h: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            out = h.clone()
            out[mask] = self.norm(h[mask])
            return out

    mask = torch.arange(16) % 3 > 0

    def trained(compile_it: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Masked().train()
        run = ways.compiled(model, dynamic=True, fallback="pytorch") if compile_it else model
        with torch.enable_grad():
            x = torch.randn(16, 8, requires_grad=True)
            for _ in range(2):
                run(x, mask).square().sum().backward()
        return [x.grad, model.norm.weight.grad, model.norm.running_mean]

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-3, atol=1e-4)


def half_precision_with_weights_in_8_bits(ways: Ways) -> None:
    """A layer whose weight is int8 times a scale, in float16, does not overflow where eager does not."""

    class WeightOnly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.register_buffer("weight", torch.randint(-127, 128, (32, 64), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(32).half() * 2e-3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight.to(x.dtype)) * self.scale

    for dtype in (torch.float16, torch.bfloat16):
        model = WeightOnly().eval()
        model.scale = model.scale.to(dtype)
        ways.agree(model, (torch.randn(4, 64) * 5).to(dtype), tolerance=1e-2)


REPORTS = [
    Report("pytorch/pytorch#149496", rows_renormalized_in_place),
    Report("pytorch/pytorch#195422", writes_through_an_inactive_dropout),
    Report("pytorch/pytorch#196173", state_of_a_python_object),
    Report("pytorch/pytorch#149894", names_in_a_state_dict),
    Report("pytorch/pytorch#145411", copies_of_an_accelerated_module),
    Report("openvinotoolkit/openvino#31383", memory_of_many_models, (2, 6), full=True),
    Report("pytorch/pytorch#194504", cumulative_batch_norm),
    Report("pytorch/pytorch#173452", hooks_that_keep_results),
    Report("pytorch/pytorch#154036", jacobians_of_compiled_functions, (2, 6)),
    Report("pytorch/pytorch#150921", calls_in_a_forked_process),
    Report("ultralytics/inference#425", folders_that_cannot_be_written),
    Report("pytorch/pytorch#194166", norms_of_chosen_rows),
    Report("pytorch/ao#1662", half_precision_with_weights_in_8_bits, (2, 6)),
]
