"""What the commands print for people: singulars, one unit for sizes, and names of networks and stages that are words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers")

from ov_backend.cli import main as cli
from ov_backend.cli.batch import BatchProgress
from ov_backend.core.amounts import counted
from tests.cli.conftest import Refusal


def test_a_count_goes_with_its_noun() -> None:
    texts = ["0 steps", "1 step", "2 steps", "1 mix", "2 mixes"]
    assert [*(counted(n, "step") for n in range(3)), *(counted(n, "mix", "mixes") for n in (1, 2))] == texts


def test_the_report_of_a_checkpoint_is_in_words(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = tmp_path / "p.svg"
    assert cli.main(["report", str(checkpoint), "--size", "64x128", "--svg", str(drawing)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("4 graphs, 0 graph breaks, 100 %")
    assert [line.split(":")[0] for line in lines] == ["UNet", "VAE encoder", "VAE decoder", "text encoder"]
    for line in lines:
        assert "iB read and written, weights " in line
        assert line.endswith(("KiB", "MiB"))
    texts = drawing.read_text(encoding="utf-8")
    assert ">VAE encoder<" in texts
    assert "vae_encode" not in texts
    assert "MB" not in texts


def test_the_report_takes_one_number_or_width_and_height(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def report(size: str) -> dict[str, Any]:
        assert cli.main(["report", str(checkpoint), "--size", size, "--json"]) == 0
        graphs = json.loads(capsys.readouterr().out)["graphs"]
        assert "title" not in graphs[0]
        return {graph["name"]: graph for graph in graphs}

    one, square, wide, high = (report(size) for size in ("64", "64x64", "128x64", "64x128"))
    assert one == square
    assert {name: graph["label"] for name, graph in one.items()}["vae_encode"] == "VAE encoder"
    for name in ("unet", "vae_encode", "vae_decode"):
        assert one[name]["flops"] < wide[name]["flops"] == high[name]["flops"]


def test_the_demo_is_in_words(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, folder = str(tmp_path / "x.png"), str(tmp_path / "graphs")
    arguments = ["demo", "--checkpoint", str(checkpoint), "--size", "64", "--steps", "1", "--precision", "f32"]
    assert cli.main([*arguments, "--out", out, "--cache-dir", folder]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line)
    assert lines["Computed"] == "on CPU in f32, 64x64, 1 step, guidance 7, seed 0"
    once = [part.rsplit(None, 2)[0] for part in lines["Once"].split(" (")[0].split(", ")]
    assert once == ["reading code", "reading graphs", "tracing", "converting", "binding weights", "compiling"]
    assert all(words in lines["Once"] for words in ("converting ", "binding weights ", "compiling ", "(0 graphs found on disk)"))


def test_a_batch_of_one_picture_is_singular() -> None:
    progress = BatchProgress(as_json=True)
    assert progress.count == "No picture was made."
    for pictures, skipped, words in (
        (1, 0, "1 of 1 picture made."),
        (2, 1, "1 of 1 picture made, 1 was there already."),
        (1, 1, "The picture is there already."),
    ):
        progress.report({"event": "plan", "pictures": pictures, "skipped": skipped})
        progress.report({"event": "picture", "made": 1, "otherwise": 0, "failed": 0})
        assert progress.count == words


SERVE = [
    (["--port", "99999"], "argument --port: it takes a whole number from 0 to 65535, such as 7865, not '99999'"),
    (["--port", "x"], "argument --port: it takes a whole number from 0 to 65535, such as 7865, not 'x'"),
    (
        ["--host", "nonsense.invalid"],
        "--host is 'nonsense.invalid', which is no address and no name of a machine; give 127.0.0.1",
    ),
    (["--host", ""], "--host is '', which is no address and no name of a machine; give 127.0.0.1"),
    (["--host", "192.0.2.1"], "--host is '192.0.2.1', which is no address of this machine; give 127.0.0.1"),
]


@pytest.mark.parametrize("arguments,words", SERVE, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_an_address_that_cannot_be_listened_at_is_one_sentence(arguments: list[str], words: str, assert_refused: Refusal) -> None:
    assert_refused(["serve", *arguments], words)


def test_a_port_in_use_is_one_sentence(assert_refused: Refusal) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = f"--port is {port}, which something else listens at on 127.0.0.1; give another, or 0 for any free one."
        assert_refused(["serve", "--port", str(port)], words)
