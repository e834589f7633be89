"""Rows made by processes on Ray: every row once and right, whatever fails or ends. Two nodes of a cluster run on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("diffusers")
pytest.importorskip("ray")

from ov_backend.batch import cluster, pictures
from ov_backend.batch.journal import read_records
from ov_backend.core import posix
from ov_backend.core.errors import OVBackendError, SettingsError
from tests.batch.conftest import MakeBatch
from tests.batch.standin import StandIn
from tests.helpers.extent import only_in_full

ROOT = Path(__file__).parents[2]
JOB: list[dict[str, Any]] = [{"prompt": f"picture {i}", "seed": i, "size": "64x64"} for i in range(1, 7)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of two nodes; the second one is killed by the last test that uses it."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else tests that run beside it take all of the processor
    cluster.import_ray()
    from ray.cluster_utils import Cluster

    arguments = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    arguments["_system_config"] = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    two = Cluster(initialize_head=True, head_node_args=arguments)
    two.second = two.add_node(num_cpus=1, object_store_memory=80 << 20)
    two.wait_for_nodes()
    yield two
    two.shutdown()


def assert_every_row_once(out: Path, rows: int, failed: tuple[int, ...] = ()) -> None:
    records = list(read_records(out))
    assert Counter(record["row"] for record in records) == Counter(range(1, rows + 1))
    assert {record["row"] for record in records if record["error"]} == set(failed)
    for record in records:
        if record["file"]:
            with Image.open(out / record["file"]) as picture:
                assert picture.convert("RGB").getpixel((0, 0))[2] == record["row"] % 256
    assert len(list(out.glob("*.png"))) == rows - len(failed)


def test_a_failing_row_is_tried_again_and_one_that_ends_its_process_is_recorded(
    make_batch: MakeBatch, tmp_path: Path, nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_RESTARTS", 0)  # each start takes seconds
    renderer = StandIn(failures={2: 1, 4: 2}, deadly=(6,))
    events: list[dict[str, Any]] = []
    result = make_batch(JOB, contact_sheet=False, ray=nodes.address, workers=1).run(events.append, renderer)
    assert (result.made, result.failed) == (4, 2)
    assert_every_row_once(tmp_path / "out", 6, failed=(4, 6))
    errors = {record["row"]: record for record in read_records(tmp_path / "out") if record["error"]}
    assert (errors[4]["error"], errors[4]["attempts"]) == ("RuntimeError: planted", 2)
    assert "every process that was to make it has ended" in errors[6]["error"]
    assert [event["event"] for event in events].count("picture") == 4
    again = make_batch(JOB, contact_sheet=False).run(renderer=StandIn())
    assert (again.made, again.skipped, again.failed) == (2, 4, 0)


@only_in_full
def test_real_networks_on_ray_make_the_pictures_of_one_process(make_batch: MakeBatch, tmp_path: Path, nodes: Any) -> None:
    rows = [{"prompt": "a cat", "seed": [1, 2], "size": "64x64", "steps": 1}]
    assert make_batch(rows, contact_sheet=False, ray=nodes.address, workers=1).run().made == 2
    records = list(read_records(tmp_path / "out"))
    assert {record["answered"] for record in records} == {"OpenVINO"}
    pictures = {record["file"]: np.asarray(Image.open(tmp_path / "out" / record["file"]), dtype=int) for record in records}
    (tmp_path / "out").rename(tmp_path / "ray")
    make_batch(rows, contact_sheet=False).run()
    for name, picture in pictures.items():
        assert np.abs(np.asarray(Image.open(tmp_path / "out" / name), dtype=int) - picture).max() <= 2


def test_another_machine_needs_the_files_that_a_row_names_with_the_same_content(
    make_batch: MakeBatch, tmp_path: Path, nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "sha256", lambda path: "of another content")  # in this process only
    result = make_batch(JOB, contact_sheet=False, ray=nodes.address).run(renderer=StandIn(seconds=0.1))
    errors = [record["error"] for record in read_records(tmp_path / "out") if record["error"]]
    assert 1 <= len(errors) == result.failed < 6
    for error in errors:
        assert "small.safetensors is not on the machine" in error
        assert error.endswith("copy it there, or put it into a folder that all machines share")


@only_in_full
def test_a_node_that_is_killed_loses_no_row(make_batch: MakeBatch, tmp_path: Path, nodes: Any) -> None:
    rows = [{"prompt": "x", "seed": list(range(1, 61)), "size": ["64x64", "64x128"]}]
    made: list[int] = []

    def report(event: dict[str, Any]) -> None:
        made.extend([1] if event["event"] == "picture" else [])
        if len(made) == 30:
            threading.Thread(target=nodes.remove_node, args=(nodes.second, False)).start()

    result = make_batch(rows, contact_sheet=False, ray=nodes.address).run(report, StandIn(seconds=0.05))
    assert (result.made, result.failed) == (120, 0)
    assert_every_row_once(tmp_path / "out", 120)
    deadline = time.monotonic() + 60
    while len(nodes.list_all_nodes()) > 1:
        assert time.monotonic() < deadline


def test_nothing_phones_home() -> None:
    cluster.import_ray()
    usage_lib = pytest.importorskip("ray._common.usage.usage_lib")  # it stands elsewhere in older versions
    assert not usage_lib.usage_stats_enabled()


@pytest.mark.parametrize(
    "address,words",
    [
        ("127.0.0.1:1", "where nothing answers (.*); run ray start --head"),
        ("nonsense", "it must be HOST:PORT, as ray start --head prints it, auto or local"),
        ("ray://127.0.0.1:10001", "it must be HOST:PORT"),
        ("127.0.0.1:99999", "where nothing answers"),
        ("\ud800:1", "where nothing answers"),
        ("", "it must be HOST:PORT"),
    ],
)
def test_a_wrong_address_is_one_sentence(address: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        cluster.check_address(address)


def test_a_missing_ray_says_what_to_run(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OVBackendError, match=r"^--ray and --workers need one more package: pip install 'ray>=2.54'$"):
        make_batch(JOB, workers=2).run()
    assert not list((tmp_path / "out").glob("*.png"))


@pytest.mark.parametrize("nodes,count,expected", [
    (["a", "b"], None, {"a": 1, "b": 1}),
    (["a", "b"], 3, {"a": 2, "b": 1}),
    (["a", "b"], 1, {"a": 1}),
])
def test_processes_are_spread_over_machines(nodes: list[str], count: int | None, expected: dict[str, int]) -> None:
    assert cluster._spread(nodes, count) == expected


@pytest.mark.parametrize("environment,words", [
    ({}, "which asks for a token; set RAY_AUTH_MODE=token, and put the cluster's token into the file"),
    ({"RAY_AUTH_MODE": "token"}, "which needs another token (Token authentication is enabled but no"),
    ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 40}, "which needs another token (RPC error: InvalidAuthToken"),
    ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/none"}, "which needs another token (RAY_AUTH_TOKEN_PATH is set but"),
    ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 40}, "connected"),
])
@only_in_full
def test_an_address_with_a_token_works_or_is_one_sentence(
    environment: dict[str, str], words: str, guarded: str, tmp_path: Path
) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    code = f"""
from ov_backend.batch import cluster
from ov_backend.core.errors import SettingsError
try:
    cluster.connect(cluster.import_ray(), {guarded!r})
    print("connected")
except SettingsError as error:
    print(error)
"""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env={**clean, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), **environment}, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = done.stdout.decode().splitlines()
    assert words in line


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster that asks for a token of forty zeros."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 40, "RAY_USAGE_STATS_ENABLED": "0"}
    ray = str(Path(sys.executable).with_name("ray"))
    start = [ray, "start", "--head", "--block", "--port", str(port), "--num-cpus", "1", "--include-dashboard", "false"]
    start += ["--object-store-memory", str(80 << 20), "--temp-dir", str(tmp_path_factory.mktemp("r"))]
    process = subprocess.Popen(start, env={**os.environ, **token}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        yield next(line for line in said if f":{port}'" in line).partition("--address='")[2].partition("'")[0]
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_processes_share_the_cores() -> None:
    before = os.sched_getaffinity(0)
    try:
        bound = []
        for index in range(len(before)):
            assert posix.use_cores(index, len(before)) == 1
            bound.append(os.sched_getaffinity(0))
            os.sched_setaffinity(0, before)
        assert set.union(*bound) == before
        assert posix.use_cores(7, 8) >= 1
        os.sched_setaffinity(0, before)
        assert posix.use_cores(0, 1) == len(before)
    finally:
        os.sched_setaffinity(0, before)
