"""A process that compiles networks, takes away all access to their weights, and lets them answer.

A read of a weight ends the process with a segmentation fault; the last line that it printed names the case.
Run as ``python -m tests.helpers.protected PRECISION...``.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable

import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.model.runtime import bound_model
from tests.helpers import networks
from tests.helpers.small import Small

PAGE = mmap.PAGESIZE
#: Relative error that a precision may have.
TOLERANCES = {"f32": 1e-3, "bf16": 0.05, "f16": 0.02}


class Operators(torch.nn.Module):
    """Every way in which a weight is read, in sizes that fit no block of a processor's registers and in sizes that do."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {
            "left": (24, 19), "square": (48, 48), "odd": (37, 19), "vector": (19,), "row": (1, 64), "batched": (2, 19, 16),
            "picture": (1, 8, 12, 12), "conv": (16, 8, 3, 3), "point": (32, 8, 1, 1), "deep": (8, 1, 3, 3),
            "grouped": (16, 4, 3, 3), "up": (8, 6, 2, 2), "line": (12, 19, 3), "volume": (4, 8, 1, 3, 3), "table": (50, 19),
            "norm": (8,), "slope": (8,),
        }.items():  # fmt: skip
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape)))

    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [2, 8, 12, 12], y [2, 5, 19], ids [2, 5]."""
        F = torch.nn.functional
        y = y + F.embedding(ids, self.table)
        square = F.linear(y, self.odd) @ torch.ones(37, 48)
        return (
            self.left @ y.transpose(1, 2), square @ self.square, F.linear(y[:, 0], self.odd), y @ self.vector, y @ self.batched,
            F.linear(y[:1, :1], self.odd), F.linear(y, self.table), F.linear(y.mean(-1, keepdim=True), self.row.t()),
            x * self.picture, F.conv2d(x, self.conv, padding=1), F.conv2d(x, self.point), F.conv2d(x, self.deep, groups=8),
            F.conv2d(x, self.grouped, groups=2), F.conv_transpose2d(x, self.up, stride=2), F.conv1d(y.transpose(1, 2), self.line),
            F.conv3d(x[:, :, None], self.volume), F.group_norm(x, 4, self.norm, self.slope), F.prelu(x, self.slope),
            F.layer_norm(y, (19,), self.vector, self.vector), torch.einsum("bti,oi->bto", y, self.odd), y @ self.left.t()[:, :7],
        )  # fmt: skip


def cases() -> dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]]:
    """Modules with arguments by name."""
    torch.manual_seed(0)
    x, time, text = networks.latents(), torch.tensor([1.0, 500.0]), networks.context()
    y, ids = torch.randn(2, 5, 19), torch.randint(0, 50, (2, 5))
    return {
        "operators": lambda: (Operators(), (torch.randn(2, 8, 12, 12), y, ids)),
        "small": lambda: (Small(), (torch.randn(1, 4, 8, 8), ids)),
        "unet": lambda: (networks.unet(), (x, time, text)),
        "vae_encoder": lambda: (networks.vae_encoder(), (torch.randn(1, 3, 32, 32),)),
        "vae_decoder": lambda: (networks.vae_decoder(), (networks.latents(1),)),
    }


class Locked:
    """Moves a module's weights to pages of their own, to which access can be taken away."""

    def __init__(self, module: torch.nn.Module) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        sizes = [-(-tensor.nbytes // PAGE) * PAGE for tensor in tensors]
        self._memory = mmap.mmap(-1, sum(sizes))
        offset = 0
        for tensor, size in zip(tensors, sizes):
            new = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            tensor.data = new.view(tensor.shape).copy_(tensor.data)
            offset += size

    def lock(self) -> None:
        """Take access away."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        failed = ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), len(self._memory), mmap.PROT_READ & 0)
        assert not failed, ctypes.get_errno()


def answer_without_weights(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], precision: str) -> float:
    """The relative error of a compiled network's answer while its weights cannot be read."""
    locked = Locked(module)
    expected = module(*inputs)
    engine = Engine(Settings(precision=precision, model_caching=False, fallback="raise"))
    network = engine.network("network", module)
    network(*inputs)
    (key,) = list(engine.compiled)
    entry = engine.compiled.get(key)
    assert entry.program.owns
    tensors = network._call(inputs, {}).tensors
    locked.lock()
    answers = entry.program(tensors)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    return max(networks.relative_error(got, want) for got, want in zip(answers, expected, strict=True))


def main(precisions: list[str]) -> None:
    """Try every case in every precision."""
    bound_model.COPY_BELOW_BYTES = 0  # share whatever is said to be packed, however small
    with torch.no_grad():
        for name, make in cases().items():
            for precision in precisions:
                _say(f"{name} {precision}")
                error = answer_without_weights(*make(), precision)
                assert error < TOLERANCES[precision], f"relative error {error}"
    _say("done")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
