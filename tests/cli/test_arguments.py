"""What the commands share: the folder of the graphs, whole numbers, precisions, and whose help is pointed to."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

from ov_backend.cli import main as cli
from ov_backend.cli.arguments import cache_dir, whole_number
from ov_backend.core.errors import SettingsError
from ov_backend.core.settings import ENV_CACHE_DIR
from ov_backend.store.store import GraphStore
from tests.cli.conftest import Refusal

#: Every command that has --cache-dir, with arguments that are good enough to get to it.
COMMANDS = {
    "demo": ["demo", "--size", "64", "--steps", "1"],
    "batch": ["batch", "none.jsonl", "--out", "out", "--dry-run"],
    "precompile": ["precompile", "none.safetensors"],
    "serve": ["serve", "--port", "0"],
    **{f"cache {action}": ["cache", action] for action in ("info", "list", "verify", "clear")},
}


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The help of a command, in one line."""
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["demo", "batch", "devices", "cache", "precompile", "serve", "report"])
def test_the_commands_above_are_all_that_have_the_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    has_option = "--cache-dir" in help_of(command, capsys)
    assert has_option == any(each.split()[0] == command for each in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_file_is_no_folder_of_graphs(
    command: list[str],
    by: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    assert_refused: Refusal,
) -> None:
    file = tmp_path_factory.mktemp("file") / "file.txt"
    file.write_text("stays")
    name = "--cache-dir" if by == "option" else ENV_CACHE_DIR
    if by == "environment":
        monkeypatch.setenv(ENV_CACHE_DIR, str(file))
    option = ["--cache-dir", str(file)] if by == "option" else []
    assert_refused([*command, *option], f"{name} is '{file}', which is no folder; give the path of a folder.")
    assert file.read_text() == "stays"


def test_the_environment_gives_the_folder_where_the_option_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, key in (("one", "a1"), ("other", "b2")):
        GraphStore(tmp_path / name).put(key, {"x": b"1"})
    monkeypatch.setenv(ENV_CACHE_DIR, str(tmp_path / "one"))

    def keys(*more: str) -> list[str]:
        assert cli.main(["cache", "list", "--json", *more]) == 0
        return [entry["key"] for entry in json.loads(capsys.readouterr().out)["entries"]]

    assert keys() == ["a1"]
    assert keys("--cache-dir", str(tmp_path / "other")) == ["b2"]


def test_a_folder_of_the_environment_need_not_exist_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, str(tmp_path / "new"))
    assert cli.main(["cache", "info"]) == 0
    assert f"0 graphs, 0 B of at most 1.0 GiB, in {tmp_path / 'new'}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["precompile", "demo", "batch"])
def test_the_graphs_go_to_the_folder_of_the_environment(
    command: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.jsonl").write_text(json.dumps({"prompt": "a", "steps": 1, "size": "64"}))
    arguments = {
        "precompile": ["precompile", str(checkpoint), "--sizes", "64"],
        "demo": ["demo", "--checkpoint", str(checkpoint), "--size", "64", "--steps", "1", "--out", str(tmp_path / "x.png")],
        "batch": ["batch", str(tmp_path / "job.jsonl"), "--out", str(tmp_path / "out"), "--checkpoint", str(checkpoint)],
    }
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(ENV_CACHE_DIR, str(tmp_path / "graphs"))
    assert cli.main([*arguments[command], "--precision", "f32"]) == 0
    assert len(GraphStore(tmp_path / "graphs").entries()) >= 3
    assert not list((tmp_path / "home").rglob("*.ovgraph"))


def test_serve_gives_the_page_the_folder_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = pytest.importorskip("ov_backend.hosts.standalone.serve")
    given = []
    monkeypatch.setattr(serve, "serve", lambda options, announce: given.append(options) or 0)
    monkeypatch.setenv(ENV_CACHE_DIR, str(tmp_path / "graphs"))
    arguments = ["serve", "--port", "0", "--out", str(tmp_path)]
    assert cli.main(arguments) == cli.main([*arguments, "--cache-dir", str(tmp_path)]) == 0
    assert [options.cache_dir for options in given] == [str(tmp_path / "graphs"), str(tmp_path)]


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_CACHE_DIR, "")
    assert cache_dir(argparse.Namespace(cache_dir=None)) is None


@pytest.mark.parametrize("path", ["file/x", "file/x/y", "link", "link/x"])
def test_what_cannot_become_a_folder_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(SettingsError, match="is no folder; give the path of a folder"):
        cache_dir(argparse.Namespace(cache_dir=str(tmp_path / path)))


@pytest.mark.parametrize("text", ["x", "", " ", "1.5", "1e3", "0", "11", "-1", "٦", "1_0", "9" * 5000])
def test_a_number_out_of_bounds_is_refused_with_its_bounds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="it takes a whole number from 1 to 10, such as 5, not"):
        whole_number(1, 10, 5)(text)


def test_whole_numbers_are_read() -> None:
    assert [whole_number(-1, 10, 5)(text) for text in ("1", " 10 ", "+7", "-1")] == [1, 10, 7, -1]


@pytest.mark.parametrize("command,has_int8", [("demo", False), ("batch", False), ("precompile", True)])
def test_the_help_offers_the_precisions_that_work(command: str, has_int8: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"one of auto, f32, bf16, f16{', int8' if has_int8 else ''}; auto" in help_of(command, capsys)


def test_the_help_of_precompile_says_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("precompile", capsys)
    assert all(
        words in text for words in (".safetensors file", "inpainting", "Flux", "model_index.json", "(.ckpt), are not read")
    )


@pytest.mark.parametrize("command", [*COMMANDS.values(), ["devices"], ["report", "x"]], ids=lambda command: " ".join(command[:2]))
def test_an_unknown_argument_points_to_the_help_of_its_command(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([*command, "--foo"])
    assert exit_.value.code == 2
    name = f"python -m ov_backend {command[0]}"
    assert capsys.readouterr().err == f"{name}: '--foo' is not an option of this command; remove it. See {name} --help.\n"
