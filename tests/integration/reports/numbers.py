"""Reports of wrong numbers: integers, divisions, casts, and operators with unusual arguments."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.integration.reports.report import Report, Ways


def shift_by_all_bits(ways: Ways) -> None:
    """A shift by as many bits as there are, or more, answers as in PyTorch."""
    for dtype, bits in ((torch.int64, 64), (torch.int32, 32), (torch.int16, 16), (torch.uint8, 8)):
        x = torch.tensor([100, 7, 1, 0, 3], dtype=dtype)
        by = torch.tensor([bits, 1, bits - 1, bits + 3, 0], dtype=dtype)
        ways.agree(lambda x, by, bits: (x << by, torch.bitwise_left_shift(x, 4), x << bits), x, by, bits, openvino=False)
        ways.agree(lambda x, by, bits: (x >> by, x >> bits, torch.relu(x * 0.5)), x, by, bits)


def negative_float_to_bytes(ways: Ways) -> None:
    """A negative float becomes the byte, or the short, that PyTorch makes of it."""
    x = torch.tensor([1.5, -0.3, -2.2, 0.6, -1.1, 250.0, 130.0])
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        ways.agree(lambda x, dtype=dtype: (x * 2 / 2).to(dtype), x.clamp(max=127) if dtype is torch.int8 else x)


def products_beyond_32_bits(ways: Ways) -> None:
    """int64 that leaves the range of int32, by constants made in the graph, keeps all its digits."""

    def f(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(0, 9, dtype=torch.int64)
        return steps * torch.tensor([1_500_000_000]) + x.long()

    ways.agree(f, torch.zeros(1))
    ways.agree(lambda x: x.long() * 1_500_000_000, torch.full((2,), 9.0), openvino=False)
    ways.agree(lambda x: (torch.arange(70_000).sum() + x.sum() * 0, torch.arange(50) ** 7), torch.zeros(1))


def division_by_integer_zero(ways: Ways) -> None:
    """A division of integers by zero raises as in PyTorch, in every spelling, and does not end the process."""
    x, zero = torch.tensor([2, 5]), torch.tensor([0])
    for operation in (torch.floor_divide, torch.remainder, torch.fmod, lambda x, y: torch.div(x, y, rounding_mode="trunc")):
        ways.raise_alike(operation, x, zero)


def smallest_integer_by_minus_one(ways: Ways) -> None:
    """The smallest integer divided by -1 does not end the process, and answers as in PyTorch."""
    x, y = torch.tensor([-(2**31), 7], dtype=torch.int32), torch.tensor([-1, -2], dtype=torch.int32)
    ways.agree(lambda x, y: (x // y, torch.remainder(x, y), torch.fmod(x, y), x.abs(), -x), x, y)


def quotient_just_below_a_whole_number(ways: Ways) -> None:
    """A floor division whose exact quotient is just below a whole number is not rounded up before the floor."""
    x, y = torch.tensor([1.0, 0.5, 6.0, 1.0, -1.0]), torch.tensor([0.1, 0.1, 0.2, 1 / 3, 0.1])
    ways.agree(lambda x, y: (x // y, torch.div(x, y, rounding_mode="floor"), x % y, torch.fmod(x, y)), x, y, openvino=False)


def fractional_scale_of_equal_size(ways: Ways) -> None:
    """A side whose size a fractional scale leaves as it is, is copied by nearest interpolation."""
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    ways.agree(lambda x: F.interpolate(x + 0, scale_factor=(1.3, 1.5), mode="nearest"), x)
    ways.agree(lambda x: F.interpolate(x + 0, scale_factor=1.3, mode="nearest"), x[:, :, :1, :2])


def grids(ways: Ways) -> None:
    """``grid_sample`` has each of PyTorch's modes, with points outside of the picture."""
    x, grid = torch.rand(1, 3, 8, 13), torch.randn(1, 6, 7, 2) * 1.3
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (True, False):
                ways.agree(F.grid_sample, x, grid, mode, padding, corners)


def transposed_convolutions(ways: Ways) -> None:
    """A transposed convolution answers as in PyTorch, whatever its groups, dilation, stride and padding."""
    for groups, dilation, stride, padding, extra in ((1, 1, 2, 1, 1), (4, 2, 1, 2, 0), (4, 1, 3, 0, 2), (2, 3, 2, 1, 1)):
        layer = torch.nn.ConvTranspose2d(8, 4, 3, stride, padding, extra, groups, dilation=dilation).eval()
        ways.agree(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), layer, torch.nn.ReLU()).eval(), torch.randn(2, 3, 7, 9))


def size_of_a_transposed_convolution(ways: Ways) -> None:
    """A transposed convolution has the size that ``output_padding`` or ``output_size`` asks for, in one to three dimensions."""
    one = torch.nn.ConvTranspose1d(4, 6, 4, stride=3, padding=2, output_padding=2).eval()
    ways.agree(one, torch.randn(2, 4, 11))
    two = torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1).eval()
    ways.agree(lambda x: two(x, output_size=[12, 19]), torch.randn(1, 4, 6, 10))
    three = torch.nn.ConvTranspose3d(2, 4, (2, 3, 2), stride=(1, 2, 2), padding=(0, 1, 0), output_padding=(0, 1, 0)).eval()
    ways.agree(three, torch.randn(1, 2, 3, 4, 5))


def writes_into_expanded_tensors(ways: Ways) -> None:
    """Rows added, copied, filled or put into a copy of an expanded tensor are those that the indices name."""
    base, index = torch.zeros(1, 8), torch.tensor([0, 2])

    def f(base: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = base.expand(4, 8)
        put = x.index_put((index,), rows, accumulate=True)
        return x.index_add(0, index, rows), x.index_copy(0, index, rows), x.index_fill(0, index, 3.0), put

    ways.agree(f, base, index, torch.ones(2, 8))


def indices_of_nonzero_values(ways: Ways) -> None:
    """``where`` and ``nonzero`` of one argument give the indices, also where the graph around them goes on."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = torch.where(x > 0)
        return rows, columns, torch.nonzero(x * 2 > 1), x.masked_select(x < 0).sum(), torch.relu(x) @ x.t()

    ways.agree(f, torch.randn(4, 9), whole=False)
    ways.agree(f, torch.full((4, 9), -1.0), whole=False)


def dtype_of_a_cumulative_sum(ways: Ways) -> None:
    """A cumulative sum has the dtype that its argument ``dtype`` names, also of a mask made in the graph."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ones = torch.ones((2, 4, 4), dtype=torch.bool)
        mask = x > 0
        return ones.cumsum(1, dtype=torch.bfloat16), mask.cumsum(1, dtype=torch.float32), mask.cumsum(0), mask.cumprod(1)

    ways.agree(f, torch.randn(3, 5))


def half_and_single_do_not_mix(ways: Ways) -> None:
    """Products of float16 with float32 raise as in PyTorch, in each of the operators."""
    half, single = torch.randn(2, 3, 4).half(), torch.randn(2, 4, 3)
    for operation in (torch.matmul, torch.bmm, lambda a, b: F.linear(a, b[0].t()), lambda a, b: a[0] @ b[0]):
        ways.raise_alike(operation, half, single)
    ways.raise_alike(torch.nn.Linear(4, 4).eval(), torch.randn(1, 4).half())


def gradient_of_the_largest_by_index(ways: Ways) -> None:
    """The gradient of ``index_reduce`` and ``scatter_reduce`` over minus infinity is as in PyTorch, without NaN."""
    index = torch.tensor([0, 0, 1, 1, 1])

    def f(x: torch.Tensor) -> torch.Tensor:
        empty = torch.full((2,), -torch.inf)
        first = empty.index_reduce(0, index, x, "amax", include_self=False)
        return first + empty.scatter_reduce(0, index, x, "amax", include_self=False)

    def gradient(g: object) -> torch.Tensor:
        with torch.enable_grad():
            x = torch.tensor([1.0, 3.0, 2.0, 5.0, 4.0], requires_grad=True)
            g(x).sum().backward()  # type: ignore[operator]
        return x.grad

    for options in ({}, {"aot_autograd": True}):
        torch.testing.assert_close(gradient(ways.compiled(f, **options)), gradient(f))


def positions_of_equal_values(ways: Ways) -> None:
    """Among equal values the positions are PyTorch's, of sorts, of the largest ones and of extremes along a dimension."""
    for dtype in (torch.float32, torch.uint8, torch.int64):
        x = torch.randint(0, 4, (3, 30)).to(dtype)
        ways.agree(lambda x: (x.max(1), x.min(0), torch.topk(x, 5), x.argmax(1), x * 2), x)
        ways.agree(lambda x: (x.sort(1), x.argsort(1, descending=True), torch.sort(x, dim=0, stable=True), x.float().relu()), x)
    ways.agree(lambda x: (x.relu().max(1).values, x.topk(3).values), torch.randn(3, 30))
    ways.agree(lambda x: (x.clone().sin_().t().argmax(), (x * 2).t().argmin(0)), torch.randn(5, 7))


REPORTS = [
    Report("pytorch/pytorch#143566", shift_by_all_bits),
    Report("pytorch/pytorch#156788", negative_float_to_bytes),
    Report("pytorch/pytorch#183901", products_beyond_32_bits),
    Report("pytorch/pytorch#143649", division_by_integer_zero),
    Report("pytorch/pytorch#184406", smallest_integer_by_minus_one, (2, 6)),
    Report("pytorch/pytorch#197895", quotient_just_below_a_whole_number),
    Report("pytorch/pytorch#198201", fractional_scale_of_equal_size),
    Report("pytorch/TensorRT#3674", grids, full=True),
    Report("openvinotoolkit/openvino#33397", transposed_convolutions),
    Report("openvinotoolkit/openvino#31007", size_of_a_transposed_convolution),
    Report("pytorch/pytorch#183986", writes_into_expanded_tensors),
    Report("pytorch/pytorch#149278", indices_of_nonzero_values),
    Report("pytorch/pytorch#189518", dtype_of_a_cumulative_sum),
    Report("pytorch/pytorch#177630", half_and_single_do_not_mix),
    Report("pytorch/pytorch#168358", gradient_of_the_largest_by_index),
    Report("openvinotoolkit/openvino#30666", positions_of_equal_values),
]
