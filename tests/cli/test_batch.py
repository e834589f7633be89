"""``python -m ov_backend batch``: what it prints, its exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("diffusers")

from ov_backend.cli import main as cli
from tests.cli.conftest import Refusal
from tests.helpers.extent import only_in_full
from tests.helpers.refusals import assert_sentence

ROOT = Path(__file__).parents[2]
#: A layer of the small checkpoint; a LoRA of it that holds NaN fits, and its pictures fail.
LAYER = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_v"
JOB = [
    {"prompt": "a cat", "seed": [1, 2], "steps": 1, "size": "64x64"},
    {"prompt": "a <lora:broken:1>", "seed": 3, "steps": 1, "size": "64x64"},
]


@pytest.fixture
def command(checkpoint: Path, tmp_path: Path) -> list[str]:
    broken = {f"{LAYER}.lora_down.weight": torch.full((1, 64), torch.nan), f"{LAYER}.lora_up.weight": torch.ones(32, 1)}
    save_file(broken, tmp_path / "broken.safetensors")
    (tmp_path / "job.jsonl").write_text("\n".join(json.dumps(row) for row in JOB))
    options = ["--checkpoint", str(checkpoint), "--precision", "f32", "--cache-dir", str(tmp_path / "graphs")]
    return ["batch", str(tmp_path / "job.jsonl"), "--out", str(tmp_path / "out"), *options]


def test_a_dry_run_says_what_would_run_and_writes_nothing(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 rows, 1 of them grids, make 3 pictures."
    assert [line.strip() for line in lines[2:4]] == [
        "2 pictures  small, f32, 64x64",
        "1 picture  small, f32, 64x64, LoRA broken 1",
    ]
    assert lines[4] == "1 checkpoint loaded, 1 mix of LoRAs added, networks compiled 2 times."
    assert "How long it takes is not known" in lines[5]
    assert cli.main([*command, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["pictures"], plan["compiles"], plan["estimated_seconds"]) == (3, 2, None)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_counts_what_all_processes_prepare(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    assert cli.main([*command, "--dry-run", "--workers", "2"]) == 0
    assert "In 2 processes together: networks compiled 2 to 3 times." in capsys.readouterr().out
    for alone in (["--ray", "local"], ["--workers", "auto"]):
        assert cli.main([*command, "--dry-run", *alone]) == 0
        assert "\n1 checkpoint loaded, 1 mix of LoRAs added, networks compiled 2 times.\n" in capsys.readouterr().out
    assert cli.main([*command, "--dry-run", "--workers", "9", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["processes"], plan["compiles"], plan["most_compiles"]) == (9, 2, 3)


def test_a_run_makes_what_it_can_measures_and_goes_on(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--json"]) == 1
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["plan", "picture", "picture", "failure", "end"]
    assert "The picture is not finite" in events[3]["error"]
    assert (tmp_path / "out" / "contact-001.jpg").is_file()
    assert cli.main(command) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == "0 of 1 picture made, 2 were there already, 1 row failed."
    assert "Row 2 (number 000003) failed: OVBackendError: The picture is not finite" in printed.err
    assert cli.main([*command, "--dry-run"]) == 0
    assert "There already: 2 pictures." in (out := capsys.readouterr().out)
    assert "Sampling takes some" in out
    (tmp_path / "job.jsonl").write_text(json.dumps({**JOB[0], "steps": 2}))
    assert cli.main([*command, "--dry-run"]) == 0
    assert "2 pictures there are of another job, and are replaced (--replace)." in capsys.readouterr().out
    assert cli.main(command) == 2
    assert "holds 2 pictures of another job, and none of this one; give another" in capsys.readouterr().err
    (tmp_path / "job.jsonl").write_text(json.dumps(JOB[0]))
    assert cli.main(command) == 0
    assert "All 2 pictures are there already." in capsys.readouterr().out


def test_a_measurement_gives_an_estimate(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command, "--dry-run", "--measure", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["estimated_seconds"] >= 0
    assert not (tmp_path / "out").exists()


def test_bad_rows_are_a_line_each_and_exit_code_2(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.jsonl").write_text('{"steps": 0}\n{"prompt": "a"}\n{"colour": 1}')
    assert cli.main(command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Row 1", "Row 3"]
    for line in lines:
        assert_sentence(line)
    assert not (tmp_path / "out").exists()


BAD = [
    (["none.jsonl"], "--out must be given."),
    (["none.jsonl", "--out", "x"], "'none.jsonl' is no file"),
    (["none.jsonl", "--out", "/proc/x"], "which cannot be written to"),
    (["none.jsonl", "--out", "/dev/null"], "which cannot be written to (Not a directory); give another folder"),
    (["none.jsonl", "--out", ""], "argument --out: '' is no folder; give its path, . for the current one"),
    (["none.jsonl", "--out", "x", "--lora-dir", " "], "argument --lora-dir: ' ' is no folder"),
    (["none.jsonl", "--out", "x", "--measure"], "--measure goes with --dry-run"),
    (["none.jsonl", "--out", "x", "--lora-dir", "none"], "--lora-dir is 'none'"),
    (["none.jsonl", "--out", "x", "--device", "TOASTER"], "'none.jsonl' is no file"),
    (["none.jsonl", "--out", "x", "--precision", "f8"], "'f8' is no precision; give one of auto, f32, bf16, f16. See"),
    (["none.jsonl", "--out", "x", "--precision", "int8"], "give one of auto, f32, bf16, f16, or"),
    (["none.jsonl", "--out", "x", "--ray", "nonsense"], "--ray is 'nonsense'; it must be HOST:PORT"),
    (["none.jsonl", "--out", "x", "--workers", "0"], "--workers is 0; give a number from 1 to 1024, or auto"),
    (["none.jsonl", "--out", "x", "--workers", "many"], "argument --workers: 'many' is no number; give one, or auto"),
]


@pytest.mark.parametrize("arguments,words", BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_input_is_one_sentence(arguments: list[str], words: str, assert_refused: Refusal) -> None:
    assert_refused(["batch", *arguments], words)


@only_in_full
@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
@pytest.mark.parametrize("number,workers", [(signal.SIGINT, ()), (signal.SIGTERM, ()), (signal.SIGTERM, ("--workers", "1"))])
def test_ctrl_c_and_sigterm_say_how_to_go_on_and_are_130(
    command: list[str], tmp_path: Path, number: signal.Signals, workers: tuple[str, ...]
) -> None:
    if workers:
        pytest.importorskip("ray")
    (tmp_path / "job.jsonl").write_text(json.dumps({"prompt": "x", "seed": list(range(5000)), "steps": 1, "size": "64x64"}))
    run = [sys.executable, "-m", "ov_backend", *command, *workers]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    manifest, deadline = tmp_path / "out" / "manifest.jsonl", time.monotonic() + 120
    while not (manifest.is_file() and manifest.stat().st_size):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err[-2000:]
    assert "Traceback" not in err
    assert "PC: @" not in err, "a stack of Ray's"
    assert "pictures made. Run the same command again to go on." in err
    assert err.rstrip().endswith("Interrupted.")
    assert out == ""
