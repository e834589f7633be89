"""Runs and resumed runs: every row once, whatever ends a run; failures and damage. No network makes the pictures."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("diffusers")

import ov_backend
from ov_backend.batch.api import Batch, Options
from ov_backend.batch.journal import Journal, read_records
from ov_backend.batch.pictures import sha256
from ov_backend.cli.batch import BatchProgress
from ov_backend.core.errors import SettingsError
from ov_backend.ui.infotext import Parameters
from tests.batch.conftest import JOB, MakeBatch, names
from tests.batch.standin import StandIn
from tests.helpers.refusals import assert_sentence


def test_pictures_are_named_by_row_and_carry_their_parameters(run: Any, tmp_path: Path) -> None:
    result = run(StandIn(), [*JOB, {"prompt": "two <lora:none:0>", "batch_size": 2, "seed": 9}][:5])
    assert (result.made, result.skipped, result.failed) == (5, 0, 0)
    assert names(tmp_path / "out") == [f"{i:06d}-{i}.png" for i in range(1, 6)]
    with Image.open(tmp_path / "out" / "000003-3.png") as picture:
        parameters, choices = Parameters.from_text(picture.info["parameters"])
    assert (parameters.prompt, parameters.seed, parameters.sampler) == ("picture 3", 3, "DPM++ 2M")
    assert choices is not None
    assert choices.precision == "f32"
    records = list(read_records(tmp_path / "out"))
    assert [record["row"] for record in records] == [1, 2, 3, 4, 5]
    assert all(record["sha256"] == sha256(tmp_path / "out" / record["file"]) for record in records)
    assert {record["answered"] for record in records} == {"OpenVINO"}


def test_pictures_that_openvino_did_not_wholly_answer_are_counted(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[dict[str, Any]] = []
    result = run(StandIn(answered="OpenVINO; UNet in f32"), report=events.append)
    assert (result.made, result.otherwise, events[-1]["otherwise"]) == (5, 5, 5)
    progress = BatchProgress(as_json=False)
    for event in events:
        progress.report(event)
    assert progress.count == '5 of 5 pictures made; 5 are in part of PyTorch or f32, as "answered" in the manifest says.'


def test_a_batch_has_a_picture_and_a_seed_for_each(run: Any, tmp_path: Path) -> None:
    assert run(StandIn(), [{"prompt": "x", "seed": 9, "batch_size": 3}]).made == 3
    assert names(tmp_path / "out") == ["000001-10.png", "000001-11.png", "000001-9.png"]
    with Image.open(tmp_path / "out" / "000001-11.png") as picture:
        assert Parameters.from_text(picture.info["parameters"])[0].seed == 11
    (tmp_path / "out" / "000001-10.png").unlink()
    renderer = StandIn()
    run(renderer, [{"prompt": "x", "seed": 9, "batch_size": 3}])
    assert renderer.rendered == [1]


def test_an_interrupted_run_goes_on_where_it_was(run: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(StandIn(interrupt_at=2))
    assert names(tmp_path / "out") == ["000001-1.png", "000002-2.png"]
    renderer = StandIn()
    result = run(renderer)
    assert renderer.rendered == [3, 4, 5]
    assert (result.made, result.skipped) == (3, 2)
    assert run(nothing := StandIn()).skipped == 5
    assert nothing.rendered == []


def test_a_changed_row_is_made_again_and_its_old_picture_goes(run: Any, tmp_path: Path) -> None:
    run(StandIn())
    changed = [*JOB[:2], {**JOB[2], "seed": 33}, {**JOB[3], "prompt": "another"}, JOB[4]]
    renderer = StandIn()
    run(renderer, changed)
    assert renderer.rendered == [3, 4]
    assert names(tmp_path / "out") == ["000001-1.png", "000002-2.png", "000003-33.png", "000004-4.png", "000005-5.png"]


def test_a_damaged_and_a_missing_picture_are_made_again(run: Any, tmp_path: Path) -> None:
    run(StandIn())
    damaged = tmp_path / "out" / "000002-2.png"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    (tmp_path / "out" / "000004-4.png").unlink()
    renderer = StandIn()
    run(renderer)
    assert renderer.rendered == [2, 4]


def test_another_picture_to_start_from_is_noticed(run: Any, tmp_path: Path) -> None:
    job = [{"init_image": "start.png", "denoising_strength": 0.5, "seed": 1}]
    Image.new("RGB", (64, 64)).save(tmp_path / "start.png")
    run(StandIn(), job)
    Image.new("RGB", (64, 64), (9, 9, 9)).save(tmp_path / "start.png")
    renderer = StandIn()
    run(renderer, job)
    assert renderer.rendered == [1]


def test_a_folder_that_is_gone_ends_the_run(run: Any, tmp_path: Path) -> None:
    class Removing(StandIn):
        def render(self, row: Any) -> Any:
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            return super().render(row)

    renderer = Removing()
    with pytest.raises(FileNotFoundError):
        run(renderer)
    assert renderer.rendered == [1]


def test_what_a_killed_run_leaves_counts_as_nothing(run: Any, tmp_path: Path) -> None:
    run(StandIn())
    out = tmp_path / "out"
    lines = (out / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (out / "manifest.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:40])  # killed while it wrote the last line
    (out / ".000005-5.png.part").write_bytes(b"half")
    (out / "mine.part").write_bytes(b"of the user")
    renderer = StandIn()
    run(renderer)
    assert renderer.rendered == [5]
    assert not (out / ".000005-5.png.part").exists()
    assert (out / "mine.part").exists()
    assert run(StandIn()).skipped == 5


def test_a_row_that_fails_once_is_tried_again_and_one_that_fails_twice_is_recorded(run: Any, tmp_path: Path) -> None:
    renderer = StandIn(failures={2: 1, 4: 2})
    result = run(renderer)
    assert renderer.rendered == [1, 2, 2, 3, 4, 4, 5]
    assert (result.made, result.failed) == (4, 1)
    (failure,) = [record for record in read_records(tmp_path / "out") if record["error"]]
    assert (failure["row"], failure["file"], failure["error"]) == (4, None, "RuntimeError: planted")
    again = StandIn()
    assert run(again).failed == 0
    assert again.rendered == [4]


def test_a_file_that_cannot_be_written_ends_its_row_only(run: Any, tmp_path: Path) -> None:
    (tmp_path / "out" / "000002-2.png").mkdir(parents=True)
    (tmp_path / "out" / "manifest.jsonl").touch()
    result = run(StandIn())
    assert (result.made, result.failed) == (4, 1)
    assert not list((tmp_path / "out").glob(".*.part"))


@pytest.mark.skipif(os.name == "nt", reason="locks are POSIX's")
def test_a_second_process_in_the_same_folder_is_refused(run: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with Journal(tmp_path / "out"), pytest.raises(SettingsError, match="Another process is writing to"):
        run(StandIn())
    assert run(StandIn()).made == 5


def test_a_manifest_of_somebody_else_removes_no_file(run: Any, tmp_path: Path) -> None:
    (tmp_path / "precious.png").write_bytes(b"x")
    (tmp_path / "out").mkdir()
    foreign = [{"row": 1, "file": "../precious.png", "sha256": "x", "parameters": digest} for digest in "ab"]
    foreign += [{"row": "1", "file": 7}, {"row": 1, "file": None}]
    lines = [json.dumps(record) for record in foreign] + ["[]", "7", "\x00", "[" * 100_000]
    (tmp_path / "out" / "manifest.jsonl").write_text("\n".join(lines))
    assert run(StandIn()).made == 5
    assert (tmp_path / "precious.png").exists()


FOREIGN = ["000001-1.png", "000900-4.png", "contact-002.jpg", "manifest.parquet", ".000003-3.png.part", ".contact-001.jpg.part"]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_somebody_else_is_neither_replaced_nor_removed(run: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"precious")
    with pytest.raises(SettingsError, match="which batch has made it; give another folder") as refused:
        run(StandIn())
    assert_sentence(str(refused.value))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {name: b"precious"}


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_file_is_no_folder(run: Any, checkpoint: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="give a folder as --out") as refused:
        ov_backend.batch(JOB, tmp_path / out, checkpoint=checkpoint)
    assert_sentence(str(refused.value))


def test_a_manifest_that_is_none_of_a_batch_is_refused(run: Any, tmp_path: Path) -> None:
    manifest = tmp_path / "out" / "manifest.jsonl"
    manifest.parent.mkdir()
    for text in ('{"audio": "a.wav"}\n', "Pictures of a trip\n", '["a"]\n'):
        manifest.write_text(text)
        with pytest.raises(SettingsError, match="is not the manifest of a batch"):
            run(StandIn())
        assert manifest.read_text() == text
    manifest.write_text('{"ro')  # killed while the first line was written
    assert [run(StandIn(), JOB[:1]).made for _ in range(2)] == [1, 0]
    shutil.rmtree(manifest.parent)
    manifest.parent.mkdir()
    manifest.symlink_to(tmp_path / "nothing")
    with pytest.raises(SettingsError, match="is no ordinary file"):
        run(StandIn())
    if hasattr(os, "mkfifo"):
        manifest.unlink()
        os.mkfifo(manifest)  # to read it would wait for ever
        with pytest.raises(SettingsError, match="is no ordinary file"):
            run(StandIn())


def test_numbers_of_an_edited_manifest_cost_no_picture(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "out").mkdir()
    lines = ['{"row": %s, "file": null}' % ("9" * 30), '{"row": 7, "file": "000007-1.png", "seconds": %s}' % ("9" * 400)]
    (tmp_path / "out" / "manifest.jsonl").write_text("\n".join(lines))
    assert run(StandIn()).made == 5
    assert (tmp_path / "out" / "manifest.parquet").is_file()


def test_a_full_disk_ends_the_run_and_the_next_one_goes_on(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = StandIn()

    def full(handle: int) -> None:
        if len(renderer.rendered) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ov_backend.batch.pictures.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        run(renderer)
    assert renderer.rendered == [1, 2, 3], "no picture is made in vain"
    assert not list((tmp_path / "out").glob(".*.part"))
    monkeypatch.undo()
    assert run(StandIn()).made == 3


def test_unfinished_pages_and_manifests_of_a_killed_run_are_removed(run: Any, tmp_path: Path) -> None:
    run(StandIn())
    for name in (".contact-007.jpg.part", ".manifest.parquet.part"):
        (tmp_path / "out" / name).write_bytes(b"half")
    run(StandIn(), contact_sheet=False)
    assert not list((tmp_path / "out").glob(".*.part"))


def test_a_name_that_is_no_text_can_be_a_folder(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system has no such names")
    rows = [{"prompt": "a", "seed": 1, "size": "64x64"}]
    assert Batch(rows, folder, Options(checkpoint=checkpoint, precision="f32")).run(renderer=StandIn()).made == 1


WRONG_TYPES: list[tuple[Any, dict[str, Any], str]] = [
    (7, {}, "rows is a int; give"),
    (None, {}, "rows is a NoneType"),
    ({"prompt": "a"}, {}, "rows is a dict"),
    (b"job.jsonl", {}, "rows is a bytes"),
    ([{"prompt": "a"}], {"checkpoint": 7}, "checkpoint is 7; it must be a path"),
    ([{"prompt": "a"}], {"lora_dir": ""}, "lora_dir is ''; it must be a path"),
    ([{"prompt": "a"}], {"out": None}, "out is None; it must be a path"),
    ([{"prompt": "a"}], {"out": " "}, "out is ' '; it must be a path"),
    ([{"prompt": "a"}], {"ray": 7}, "--ray is 7; it must be HOST:PORT"),
    ([{"prompt": "a"}], {"workers": True}, "--workers is True; give a number"),
    ([{"prompt": "a"}], {"workers": 1.5}, "--workers is 1.5; give a number"),
]


@pytest.mark.parametrize("rows,options,words", WRONG_TYPES, ids=[words for _, _, words in WRONG_TYPES])
def test_arguments_of_a_wrong_type_are_refused(rows: Any, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ov_backend.OVBackendError, match=re.escape(words)) as refused:
        ov_backend.batch(rows, **{"out": tmp_path / "out", **options})
    assert_sentence(str(refused.value))
    assert not list(tmp_path.iterdir())


def test_events_tell_the_plan_every_picture_failures_and_the_end(make_batch: MakeBatch) -> None:
    events: list[dict[str, Any]] = []
    make_batch(JOB).run(events.append, StandIn(failures={2: 2}))
    assert [event["event"] for event in events] == ["plan", "picture", "failure", "picture", "picture", "picture", "end"]
    assert (events[0]["pictures"], events[0]["compiles"]) == (5, 1)
    assert (events[-2]["rows_done"], events[-2]["failed"], events[-2]["seconds_left"]) == (5, 1, 0)
    assert (events[-1]["made"], events[-1]["failed"]) == (4, 1)
    json.dumps(events)


def test_the_manifest_becomes_parquet(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    run(StandIn(failures={2: 2}))
    rows = parquet.read_table(tmp_path / "out" / "manifest.parquet").to_pylist()
    assert {row["row"]: row["file"] for row in rows} == {1: "000001-1.png", 2: None, **{i: f"{i:06d}-{i}.png" for i in (3, 4, 5)}}
    assert [row["attempts"] for row in rows] == [None, 2, None, None, None]
    assert rows[0]["work"] == 64 * 64 * 20 * 2


def test_parquet_has_what_became_of_a_changed_row(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def files() -> list[tuple[str | None, str | None]]:
        rows = parquet.read_table(tmp_path / "out" / "manifest.parquet").to_pylist()
        return [(row["file"], row["error"]) for row in rows]

    pair = {"prompt": "x", "seed": 1, "size": "64x64", "batch_size": 2}
    run(StandIn(), [pair])
    run(StandIn(), [{**pair, "seed": 2}])
    assert files() == [("000001-2.png", None), ("000001-3.png", None)], "the pictures of the seed 1 are gone"
    run(StandIn(failures={1: 2}), [{**pair, "seed": 3}])
    assert files() == [(None, "RuntimeError: planted")]
    run(StandIn(), [{**pair, "seed": 3}])
    assert files() == [("000001-3.png", None), ("000001-4.png", None)]


def test_an_estimate_comes_from_earlier_pictures(make_batch: MakeBatch) -> None:
    batch = make_batch(JOB)
    assert batch.plan().seconds is None
    batch.run(renderer=StandIn(interrupt_at=-1, failures={4: 2, 5: 2}))
    plan = batch.plan()
    assert (plan.skipped, [row.number for row in plan.pending]) == (3, [4, 5])
    assert plan.seconds == pytest.approx(2 * 0.5)


def test_the_function_takes_dicts_and_goes_on_like_the_command(checkpoint: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "a cat", "seed": [1, 2], "size": "64x64"}]
    options = {"checkpoint": checkpoint, "precision": "f32", "contact_sheet": False}
    Batch(rows, tmp_path / "out", Options(**options)).run(renderer=StandIn())
    events: list[dict[str, Any]] = []
    result = ov_backend.batch(iter(rows), str(tmp_path / "out"), report=events.append, **options)
    assert (result.made, result.skipped, result.failed, result.sheets) == (0, 2, 0, ())
    assert [event["event"] for event in events] == ["plan", "end"]
    with pytest.raises(ov_backend.OVBackendError, match="batch has no option 'colour'; known are checkpoint"):
        ov_backend.batch(rows, tmp_path / "out", colour=1)
