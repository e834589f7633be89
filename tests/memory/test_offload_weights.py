"""Weights that were offloaded are what they were, for all who have them; no write is lost, and a full disk costs nothing."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import mmap
import os
import pickle
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ov_backend.memory import linux_memory
from ov_backend.memory import offload_weights as module_under_test
from ov_backend.memory.offload_weights import CannotOffload, offload_weights, page_out
from ov_backend.memory.regions import regions
from tests.helpers.disk import offloaded, on_disk, resident

MIB = 1 << 20


class Pair(torch.nn.Module):
    """Two tied layers and one of its own; [N, 640] -> [N, 640]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(640, 640) for _ in range(3))
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Pair, dict[str, torch.Tensor]]:
    """A module whose weights were offloaded, and what they were."""
    module = Pair()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert offloaded(module, tmp_path) == 2, "the tied weight counts once"
    return module, before


def assert_same(module: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    state = module.state_dict()
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


def test_the_pages_are_gone_and_the_content_is_not(tmp_path: Path) -> None:
    tensor = torch.randn(4 * MIB)
    kept, address = tensor.clone(), tensor.data_ptr()
    assert resident(tensor) >= 15 * MIB
    assert offload_weights([tensor], on_disk(tmp_path)) >= 15 * MIB
    assert resident(tensor) <= 2 * mmap.PAGESIZE, "more than the pages at its ends, which it shares with other memory"
    assert torch.equal(tensor, kept)
    assert tensor.data_ptr() == address


def test_nothing_is_left_in_the_folder(pair: tuple[Pair, object], tmp_path: Path) -> None:
    assert not list(tmp_path.iterdir())


def test_the_mappings_of_the_process_are_not_read_where_nothing_is_left_to_give_back(
    pair: tuple[Pair, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux_memory.Mappings, "read", lambda: pytest.fail("thousands of lines were read"))
    assert offload_weights(pair[0].parameters(), on_disk(tmp_path)) == 0


def test_pages_that_were_read_can_be_dropped_and_written_ones_stay(tmp_path: Path) -> None:
    tensor = torch.zeros(4 * MIB)
    offload_weights([tensor], on_disk(tmp_path))
    tensor[2 * MIB] = 7
    assert tensor.sum() == 7
    page_out([tensor])
    assert tensor[2 * MIB] == 7
    assert tensor.sum() == 7


@pytest.mark.parametrize("call", [linux_memory._PAGEMAP_SCAN, 0], ids=["Linux 6.7", "before"])
@pytest.mark.parametrize("place", [0, 2 * MIB + 17, 4 * MIB - 1])
def test_one_written_number_is_seen_by_every_kernel(
    place: int, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux_memory, "_PAGEMAP_SCAN", call)
    tensor = torch.randn(4 * MIB)
    offload_weights([tensor], on_disk(tmp_path))
    region = regions.of(tensor)
    assert region is not None
    pairs = [(tensor, region)]
    assert regions.are_unwritten(pairs)
    tensor.sum()
    assert regions.are_unwritten(pairs), "pages that were only read are the file's"
    tensor.data[place] += 1
    assert not regions.are_unwritten(pairs)


def test_views_tied_weights_and_numpy_see_one_memory(tmp_path: Path) -> None:
    module = Pair()
    weight = module.first.weight.detach()
    view, array = weight[100:200], weight.numpy()
    offloaded(module, tmp_path)
    array[150, 3] = 5.0
    assert view[50, 3] == weight[150, 3] == module.second.weight[150, 3] == 5.0
    view[0] = 1.0
    assert (array[100] == 1).all()


def test_a_copy_a_pickle_and_a_saved_state_are_whole(pair: tuple[Pair, dict[str, torch.Tensor]]) -> None:
    module, before = pair
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_same(other, before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in torch.load(buffer).items())
    copied = copy.deepcopy(module)
    copied.third.weight.zero_()
    assert_same(module, before)


def test_loading_and_adding_write_to_memory(pair: tuple[Pair, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    module, before = pair
    other = {name: torch.randn_like(tensor) for name, tensor in before.items()}
    module.load_state_dict(other)
    assert_same(module, {**other, "first.weight": other["second.weight"]})
    module.third.weight.add_(1)
    assert torch.equal(module.third.weight, other["third.weight"] + 1)
    assert offloaded(module, tmp_path) == 2, "written weights can be offloaded again"
    assert torch.equal(module.third.weight, other["third.weight"] + 1)


def test_training_goes_on(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, twin = Pair(), Pair()
    twin.load_state_dict(module.state_dict())
    offloaded(module, tmp_path)
    x = torch.randn(4, 640)
    with torch.enable_grad():
        for each in (module, twin):
            optimizer = torch.optim.Adam(each.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                each(x).square().sum().backward()
                optimizer.step()
    assert_same(module, {name: tensor.detach() for name, tensor in twin.state_dict().items()})


def test_a_forked_process_has_the_weights(pair: tuple[Pair, dict[str, torch.Tensor]]) -> None:
    module, before = pair
    child = os.fork()
    if not child:
        status = 1
        try:
            array = module.third.weight.detach().numpy()
            same = (array == before["third.weight"].numpy()).all()
            array[5, 5] = 9.0
            status = 0 if same and array[5, 5] == 9.0 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_same(module, before)


def test_a_deleted_model_leaves_neither_memory_nor_file(tmp_path: Path) -> None:
    tensor = torch.randn(16 * MIB)  # over the largest threshold of the allocator: it has a mapping of its own
    offload_weights([tensor], on_disk(tmp_path))
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    assert regions.of(tensor) is not None
    del tensor
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    offload_weights([torch.randn(1 * MIB)], tmp_path)
    assert len(regions._regions) <= 1


def test_the_allocator_goes_on_with_freed_pages_of_a_file(tmp_path: Path) -> None:
    """Blocks in the heap, whose pages were mapped from files, are freed, trimmed and used again."""
    libc = ctypes.CDLL(None)
    libc.calloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    for _ in range(4):
        tensors = [torch.full((MIB // 8,), float(i + 1)) for i in range(40)]
        offload_weights(tensors, on_disk(tmp_path))
        assert all((tensor == i + 1).all() for i, tensor in enumerate(tensors))
        del tensors[::2]
        libc.malloc_trim(0)
        blocks = [libc.calloc(MIB // 2, 1) for _ in range(40)]
        for block in blocks:
            assert not ctypes.string_at(block, MIB // 2).strip(b"\0"), "memory that should be zero has an old content"
            libc.free(block)
        assert all((tensor == 2 * i + 2).all() for i, tensor in enumerate(tensors))


def _shared() -> torch.Tensor:
    return torch.randn(MIB).share_memory_()


def _part() -> torch.Tensor:
    return torch.randn(2 * MIB)[MIB:]


def _array() -> torch.Tensor:
    return torch.from_numpy(np.zeros(2 * MIB, dtype=np.float32)[MIB // 2 :])


def _small() -> torch.Tensor:
    return torch.randn(100)


def _strided() -> torch.Tensor:
    return torch.randn(1024, 1024).t()


@pytest.mark.parametrize("make", [_shared, _part, _array, _small, _strided], ids=lambda f: f.__name__.strip("_"))
def test_what_is_no_ordinary_weight_is_left_alone(make: Callable[[], torch.Tensor], tmp_path: Path) -> None:
    tensor = make()
    assert offload_weights([tensor], on_disk(tmp_path)) == 0
    assert regions.of(tensor) is None


def test_weights_in_a_file_of_the_host_leave_it(tmp_path: Path) -> None:
    """A checkpoint that is overwritten later must not change them."""
    path = tmp_path / "weights.bin"
    path.write_bytes(torch.arange(MIB, dtype=torch.float32).numpy().tobytes())
    tensor = torch.from_file(str(path), shared=False, size=MIB)
    regions.files.add(path.stat().st_ino)  # as that of a file of ours that is gone: its number is the next file's
    assert offload_weights([tensor], on_disk(tmp_path)) == 4 * MIB
    with path.open("r+b") as file:
        file.write(bytes(4 * MIB))
    assert torch.equal(tensor, torch.arange(MIB, dtype=torch.float32))


@pytest.fixture
def small_files(tmp_path: Path) -> Iterator[int]:
    """In this test no file can be larger than 6 MiB, as on a disk that is full; the limit."""
    on_disk(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 * MIB, before[1]))
    yield 6 * MIB
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_loses_nothing(small_files: int, tmp_path: Path) -> None:
    tensors = [torch.randn(MIB), torch.randn(4 * MIB), torch.randn(MIB)]
    kept = [tensor.clone() for tensor in tensors]
    with pytest.raises(CannotOffload, match="cannot be written"):
        offload_weights(tensors, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(tensors, kept))
    assert [regions.unwritten(tensor) is not None for tensor in tensors] == [True, False, False]


def test_too_little_room_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "SPARE_BYTES", 1 << 60)
    tensor = torch.randn(MIB)
    with pytest.raises(CannotOffload, match="are needed"):
        offload_weights([tensor], on_disk(tmp_path))
    assert regions.of(tensor) is None


def test_a_disk_that_fails_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    tensor = torch.randn(MIB)
    kept, start = tensor.clone(), -(-tensor.data_ptr() // linux_memory.PAGE) * linux_memory.PAGE
    (on_disk(tmp_path) / "file").write_bytes(b"")
    mover = linux_memory.Mover()
    with (tmp_path / "file").open("rb") as unwritable, pytest.raises(OSError, match="descriptor"):
        mover.write(start, mover.bytes_at_once, unwritable)
    mover.close()
    assert torch.equal(tensor, kept)


def test_a_folder_in_memory_is_refused() -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or not linux_memory.lies_in_memory(shared):
        pytest.skip("there is no folder in memory")
    with pytest.raises(CannotOffload, match="lies in memory itself"):
        offload_weights([torch.randn(MIB)], shared)


def test_memory_that_another_thread_writes_stays(tmp_path: Path) -> None:
    """A thread counts in every page, without the interpreter's lock, while the memory is to be moved again and again."""
    on_disk(tmp_path)
    tensor = torch.zeros(MIB // 2, dtype=torch.int64)
    done, rounds = threading.Event(), 0

    def count() -> None:
        nonlocal rounds
        while not done.is_set():
            tensor.add_(1)
            rounds += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(30):
            offload_weights([tensor], tmp_path)
    finally:
        done.set()
        thread.join()
    assert rounds > 5
    assert (tensor == rounds).all(), f"{int((tensor != rounds).sum())} of {tensor.numel()} elements lack a write"


def test_what_was_written_meanwhile_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write at the worst moment: when the pages were compared with the file, and are not replaced yet."""
    tensor = torch.zeros(MIB)
    replace = linux_memory.Mover._map

    def written(mover: linux_memory.Mover, address: int, content: bytes, handle: int, offset: int) -> None:
        if offset == 2 * MIB:
            tensor[MIB // 2] = 3
        replace(mover, address, content, handle, offset)

    monkeypatch.setattr(linux_memory.Mover, "_map", written)
    offload_weights([tensor], on_disk(tmp_path))
    assert tensor[MIB // 2] == 3
    assert tensor.sum() == 3
    assert regions.unwritten(tensor) is None
