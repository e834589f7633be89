"""The command line as a process: Ctrl-C at any moment, and an output that is closed, full, or of another encoding."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ov_backend.cli.main import main
from ov_backend.core import interrupts
from tests.helpers.alone import fresh_process
from tests.helpers.extent import only_in_full, some

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and /dev are POSIX's")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ov_backend", *arguments]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder), "PYTHONUNBUFFERED": "", **more}


#: A part of what is imported, in order; each is the moment of a Ctrl-C, in a command that imports it.
MOMENTS = [
    ("ov_backend.core.errors", ["devices"]),
    ("ov_backend.core.telemetry", ["devices"]),
    ("torch.nn", ["demo"]),
    ("torch._dynamo", ["demo"]),
]


@pytest.mark.parametrize("moment,arguments", some(MOMENTS[:3], MOMENTS, several=True))
def test_ctrl_c_while_packages_are_imported_is_130_and_one_line(tmp_path: Path, moment: str, arguments: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "ov_backend", *arguments],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        name = line.rpartition("|")[2].strip()
        if name == moment:
            break
    else:
        pytest.fail(f"{moment} was not imported")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err[-2000:]
    assert "Traceback" not in err
    assert [line for line in err.splitlines() if not line.startswith("import time:")] == ["Interrupted."]
    assert out == ""


def demo_of_steps(checkpoint: Path, folder: Path) -> None:
    """The demo of 999 steps, whose output goes to the files "out" and "err" of a folder."""
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout, sys.stderr = (os.fdopen(each, "w", buffering=1) for each in (1, 2))
    interrupts.install()  # as in a command
    arguments = ["demo", "--checkpoint", str(checkpoint), "--steps", "999", "--out", str(folder / "x.png")]
    sys.exit(main([*arguments, "--cache-dir", str(folder / "graphs")]))


def test_ctrl_c_during_a_picture_of_the_demo_is_130_and_leaves_no_picture(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    err = tmp_path / "err"
    process = fresh_process(demo_of_steps, checkpoint, tmp_path)
    process.start()
    while process.is_alive() and not (err.exists() and " of 999" in err.read_text()):  # of the progress bar
        time.sleep(0.05)
    assert process.is_alive(), err.read_text()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130, err.read_text()[-2000:]
    assert "Traceback" not in err.read_text()
    assert err.read_text().endswith("Interrupted.\n")
    assert (tmp_path / "out").read_text() == ""
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "err", "graphs"}


@only_in_full
@pytest.mark.parametrize("seconds", [1.5])
def test_ctrl_c_during_a_demo_is_130_and_leaves_no_picture(tmp_path: Path, seconds: float) -> None:
    arguments = command("demo", "--steps", "999", "--size", "256", "--out", "x.png")
    process = subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    process.stderr.read(20)  # of the progress bar: the pictures have begun
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err[-2000:]
    assert "Traceback" not in err
    assert err.rstrip().endswith("Interrupted.")
    assert out == ""
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize("output", ["> /dev/full", ">&-", "| true", "2>&-", "> /dev/full 2>&1", ">&- 2>&-"])
@pytest.mark.parametrize("arguments", ["cache info", "--help"])
def test_a_closed_output_ends_quietly_and_a_full_one_with_a_sentence(tmp_path: Path, arguments: str, output: str) -> None:
    shell = f"{' '.join(command())} {arguments} {output}"
    variables = environment(tmp_path)
    done = subprocess.run(shell, shell=True, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode in ((0,) if output in ("| true", ">&-", "2>&-", ">&- 2>&-") else (1,))
    full = "The output cannot be written (No space left on device); free space there, or send it elsewhere.\n"
    assert done.stderr == (full if output == "> /dev/full" else "")


WITHOUT_PYTORCH = [["devices"], *(["cache", action] for action in ("info", "list", "verify", "clear")), ["--version"], []]


@pytest.mark.parametrize("arguments", WITHOUT_PYTORCH, ids=lambda each: " ".join(each))
def test_commands_that_need_no_pytorch_do_not_import_it(tmp_path: Path, arguments: list[str]) -> None:
    run = [sys.executable, "-X", "importtime", "-m", "ov_backend", *arguments]
    done = subprocess.run(run, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == (0 if arguments else 2)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ov_backend.cli.main" in imported
    assert not ({"torch", "diffusers", "gradio"} | ({"openvino"} if arguments != ["devices"] else set())) & imported


#: Runs the command line as after ``pip install ov-backend``, without what only the extra [demo] installs.
BASE_INSTALLATION = """
import sys
from importlib.machinery import PathFinder
find, extra = PathFinder.find_spec, {"PIL", "accelerate", "diffusers", "gradio", "tqdm", "transformers", "yaml"}
PathFinder.find_spec = lambda name, *more: None if name.partition(".")[0] in extra else find(name, *more)
from ov_backend.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
MODULE = "import torch\ndef pair(): return torch.nn.Linear(3, 3), (torch.zeros(1, 3),)\n"
BASE_COMMANDS = [*WITHOUT_PYTORCH[:-1], ["report", "planted:pair"]]
EXTRA_COMMANDS = [["generate", "a fox"], ["demo"], ["serve", "--port", "0"], ["batch", "jobs.jsonl", "--out", "out"]]
EXTRA_COMMANDS += [["precompile", "CHECKPOINT"], ["report", "CHECKPOINT"]]


@pytest.mark.parametrize("arguments", BASE_COMMANDS + EXTRA_COMMANDS, ids=lambda each: " ".join(each))
def test_without_the_extra_packages_only_what_draws_asks_for_them(tmp_path: Path, checkpoint: Path, arguments: list[str]) -> None:
    (tmp_path / "planted.py").write_text(MODULE)
    (tmp_path / "jobs.jsonl").write_text('{"prompt": "a fox"}\n')
    given = [str(checkpoint) if each == "CHECKPOINT" else each for each in arguments]
    run = [sys.executable, "-c", BASE_INSTALLATION, *given]
    variables = environment(tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    done = subprocess.run(run, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    needs = arguments in EXTRA_COMMANDS
    assert done.returncode == (2 if needs else 0), done.stderr
    assert (len(done.stderr.splitlines()), "This command needs more packages (No module" in done.stderr) == (needs, needs)
    assert (".[demo]'" in done.stderr) == needs


REFUSED = [
    ["demo", "--sampler", "none"],
    ["demo", "--checkpoint", "none.safetensors"],
    ["demo", "--device", "TOASTER"],
    ["serve", "--checkpoint", "none", "--port", "0"],
    ["serve", "--auth", "anna", "--port", "0"],
    ["batch", "none.jsonl", "--out", "out"],
    ["batch", "none.csv", "--out", "out", "--workers", "0"],
    ["precompile", "none.safetensors"],
    ["report", "none.safetensors"],
    ["batch", "bad.jsonl", "--out", "out"],
    ["generate", "a fox <lora:other>", "--lora-dir", "."],
    ["generate", "a fox", "--lora", "other.safetensors:0.5"],
    ["demo", "a fox <lora:other>", "--lora-dir", "."],
    ["batch", "lora.jsonl", "--out", "out"],
]


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda each: " ".join(each))
def test_wrong_arguments_and_missing_files_are_refused_before_pytorch_is_imported(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a fox"}\n{"prompt": "an owl", "steps": 0}\n')
    (tmp_path / "lora.jsonl").write_text('{"prompt": "a fox <lora:other>"}\n')
    layer = {f"lora_unet_none.lora_{half}.weight": torch.zeros(2, 2) for half in ("down", "up")}
    save_file(layer, tmp_path / "other.safetensors")
    run = [sys.executable, "-X", "importtime", "-m", "ov_backend", *arguments]
    done = subprocess.run(run, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "torch" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@only_in_full
def test_a_refusal_is_told_by_its_code_without_any_output(tmp_path: Path) -> None:
    shell = f"{' '.join(command())} demo --steps 0 >&- 2>&-"
    assert subprocess.run(shell, shell=True, cwd=tmp_path, env=environment(tmp_path), check=False).returncode == 2


def test_an_output_in_ascii_prints_every_path(tmp_path: Path) -> None:
    folder = tmp_path / "Grüße 日本"
    folder.mkdir()
    run = command("cache", "info", "--cache-dir", str(folder))
    variables = environment(tmp_path, PYTHONIOENCODING="ascii")
    done = subprocess.run(run, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, "Gr\\xfc\\xdfe" in done.stdout, done.stderr) == (0, True, "")
