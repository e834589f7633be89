"""Bad job files: everything is found before anything runs, in one sentence each, with the number of the row."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

pytest.importorskip("diffusers")

from ov_backend.batch import job_file, row_files
from ov_backend.batch.api import Batch, Options
from ov_backend.core.errors import JobError, SettingsError
from tests.batch.conftest import MakeBatch
from tests.helpers.refusals import LONG, assert_sentence

GOOD = '{"prompt": "a cat"}'
#: A bad row among good ones, and words of its sentence.
ROWS: list[tuple[dict[str, Any], str]] = [
    ({"promt": "a cat"}, "the column 'promt' is unknown; correct or remove it (prompt is one that is close)"),
    ({"prompt": "a", "colour": "red"}, "the column 'colour' is unknown"),
    ({"": 1}, "the column '' is unknown"),
    ({LONG: 1}, "is unknown"),
    ({"seed": 1, "Seed": 2}, "the column seed in two spellings"),
    ({"Sampler": "Euler", "sampler_name": "Euler"}, "the column sampler_name in two spellings"),
    ({"prompt": 7}, "prompt is 7; it must be text"),
    ({"prompt": {"a": 1}}, "it must be text"),
    ({"prompt": [["a"]]}, "it must be text"),
    ({"prompt": "a\0b"}, "the prompt has null characters"),
    ({"prompt": "\ud800"}, "halves of characters"),
    ({"sampler_name": "Euler\ud800"}, r"sampler_name is 'Euler\ud800'"),
    ({"scheduler": "\0"}, r"scheduler is '\x00'"),
    ({"prompt": "x" * 10001}, "the prompt has 10001 characters"),
    ({"negative_prompt": True}, "negative_prompt is True"),
    ({"prompt": []}, "prompt is an empty list"),
    ({"seed": "many"}, "seed is 'many'; it must be a whole number"),
    ({"seed": "0x10"}, "seed is '0x10'; it must be a whole number"),
    ({"seed": -2}, "the seed is -2"),
    ({"seed": 1 << 63}, "the seed is"),
    ({"seed": (1 << 63) - 1, "batch_size": 2}, "too large for a batch of 2"),
    ({"seed": 1.5}, "seed is 1.5"),
    ({"seed": True}, "seed is True"),
    ({"steps": 0}, "Steps is 0"),
    ({"steps": "9" * 40}, "it must be a whole number"),
    ({"steps": float("inf")}, "it must be a whole number"),
    ({"size": "64"}, ""),
    ({"size": "64x65"}, "not a multiple of 8"),
    ({"size": "big"}, "'big' is no size"),
    ({"size": 64.5}, "it must be text such as 512x768"),
    ({"size": True}, "or the side of a square, as 512"),
    ({"width": 64}, "it has width and no height"),
    ({"height": 64}, "it has height and no width"),
    ({"size": "64", "width": 64}, "it has size and width"),
    ({"width": 64, "height": 8}, "the size 64x8 cannot be drawn: 8 is"),
    ({"width": "64px", "height": 64}, "width is '64px'"),
    ({"sampler_name": "best"}, "sampler_name is 'best'; it must be one of DPM++ 2M"),
    ({"sampler_name": "LCM", "steps": 51}, "LCM takes at most 50 steps"),
    ({"sampler_name": "Euler", "scheduler": "Karras"}, "'Euler Karras'"),
    ({"scheduler": "exponential"}, "scheduler is 'exponential'"),
    ({"steps": "1_0"}, "steps is '1_0'; it must be a whole number"),
    ({"cfg_scale": "1_0"}, "cfg_scale is '1_0'; it must be a number"),
    ({"cfg_scale": "high"}, "cfg_scale is 'high'; it must be a number"),
    ({"cfg_scale": float("nan")}, "cfg_scale is nan"),
    ({"CFG scale": 1e6}, "cfg_scale is 1e+06; it must be a number from 1"),
    ({"cfg_scale": 0.5}, "cfg_scale is 0.5; it must be a number from 1 (no guidance, and twice as fast) to 1000"),
    ({"cfg_scale": -1000}, "cfg_scale is -1000"),
    ({"batch_size": 17}, "batch_size is 17"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"checkpoint": "none.safetensors"}, "the checkpoint 'none.safetensors' is no file in"),
    ({"checkpoint": "/none"}, "the checkpoint '/none' is no file there"),
    ({"checkpoint": "job.jsonl"}, "job.jsonl is a file of JSON"),
    ({"checkpoint": "old.ckpt"}, "old.ckpt is a pickle"),
    ({"checkpoint": "lacking"}, "lacking.safetensors is incomplete or of an unknown architecture: first_stage_model.decoder"),
    ({"checkpoint": "misshapen"}, "first_stage_model.decoder.conv_out.bias is [7], [3] is expected"),
    ({"checkpoint": 7}, "checkpoint is 7; it must be the path of a file"),
    ({"checkpoint": "a\0b"}, "it must be the path of a file"),
    ({"checkpoint": LONG}, "it must be the path of a file"),
    ({"precision": "f8"}, "precision is 'f8'; it must be one of auto, f32"),
    ({"precision": "int8"}, "it must be one of auto, f32, bf16, f16 in a batch"),
    ({"precision": 16}, "precision is 16"),
    ({"init_image": "none.png", "denoising_strength": 0.5}, "init_image is 'none.png', which is no file in"),
    ({"init_image": "job.jsonl"}, "which is no PNG, JPEG, WEBP or BMP"),
    ({"init_image": "cut.png"}, "or not all of one; give it as a PNG"),
    ({"init_image": "start.gif"}, "which is no PNG, JPEG, WEBP or BMP"),
    ({"init_image": "x" * 1000}, "which is no file in"),
    ({"loras": {"x" * 1000: 1}}, "is not in"),
    ({"init_image": "data:image/png;base64,AAAA"}, "pictures inside of a job file are not read"),
    ({"init_image": "start.png", "denoising_strength": 0}, "denoising_strength is 0"),
    ({"init_image": "start.png", "denoising_strength": 2}, "denoising_strength is 2"),
    ({"init_image": "start.png", "denoising_strength": 0.01}, "leaves none of 20 steps"),
    ({"denoising_strength": 0.5}, "a denoising_strength and no init_image"),
    ({"prompt": "a <lora:none:1>"}, "the LoRA 'none' is not in"),
    ({"prompt": "a <lora:none:much>"}, "the strength of the LoRA 'none' is 'much'"),
    ({"prompt": "a <lora:x:1:1>"}, "the strength of the LoRA 'x' is '1:1'"),
    ({"prompt": "a <lora:x:1"}, "has no end; write <lora:name:0.8>"),
    ({"prompt": "a <lora::1>"}, "has no name"),
    ({"prompt": "<lora:x:1> <lora:x:2>"}, "the LoRA 'x' is named twice"),
    ({"prompt": "<lora:x:101>"}, "it must be from -100 to 100"),
    ({"prompt": "<hypernet:x:1>"}, "only <lora:name:0.8> is read"),
    ({"loras": 7}, "loras is 7; it must be"),
    ({"loras": {"a:b": 1}}, "it must be"),
    ({"loras": {"ink": None}}, "the strength of the LoRA 'ink' is None; it must be a number, as 0.8."),
    ({"loras": "none:1"}, "the LoRA 'none' is not in"),
    ({"loras": "model:1"}, "model.safetensors is a checkpoint and no LoRA"),
    ({str(i): 1 for i in range(101)}, "it has 101 columns"),
    ({"seed": list(range(1000)), "cfg_scale": list(range(1000))}, "longer than 250000 rows"),
]
ROWS = [(row, words) for row, words in ROWS if words]

#: Files whose second row is bad, or which are bad as a whole (then without "Row 2").
FILES: list[tuple[str, str, str]] = [
    ("a.jsonl", f"{GOOD}\n{{", "Row 2: it is no JSON"),
    ("a.jsonl", f"{GOOD}\n\n\n[1]", 'Row 2 (line 4): it is \'[1]\'; write an object'),
    ("a.jsonl", f"{GOOD}\n7", "Row 2: it is '7'"),
    ("a.jsonl", f"{GOOD}\n" + "[" * 100_000, "Row 2: it is no JSON (it is nested too deep)"),
    ("a.jsonl", f'{GOOD}\n{{"seed": 1, "seed": 2}}', "Row 2: it has 'seed' twice"),
    ("a.jsonl", "[\n" + GOOD + "\n]", "one object on each line, without a list around them"),
    ("a.jsonl", f"{GOOD}{GOOD}", "one object on each line"),
    ("a.jsonl", f'{GOOD}\n{{"seed": 1,}}', "double quotes: line 1 column 12 (char 11)); correct this line"),
    ("a.jsonl", f'{GOOD}\n{{"precision": "fp16"}}', "it must be one of auto, f32, bf16, f16."),
    ("a.jsonl", "", "The job has no rows"),
    ("a.jsonl", " " * (1 << 20) + " x", "Line 1 of a.jsonl is longer than 1024 KiB"),
    ("a.csv", "prompt,seed\na,1\nb", "Row 2 (line 3): it has 1 cells, and the first line has 2 names"),
    ("a.csv", "prompt,seed\na,1\nb,2,3", "it has 3 cells"),
    ("a.csv", 'prompt\na\n"b', "it is no CSV"),
    ("a.csv", 'prompt\na\n"b"c\n', "it is no CSV"),
    ("a.csv", "prompt,\na,1", "Column 2 of a.csv has no name"),
    ("a.csv", "prompt,prompt\na,b", "has the column 'prompt' twice"),
    ("a.csv", ",\n", "begins with an empty line"),
    ("a.csv", "prompt\n" + "x" * (1 << 21), "Line 2 of a.csv is longer"),
    ("a.csv", "prompt\n" + "x" * 200_000, "it is no CSV (field larger than field limit"),
    ("a.csv", "prompt;seed\na;1", "The first line of a.csv holds 'prompt;seed', where no name of a column is; write the names"),
    ("a.csv", "prompt\tseed\na\t1", "divide columns by commas, as prompt,seed"),
    ("a.csv", "a cat,1\nan owl,2", "The first line of a.csv holds 'a cat,1'"),
    ("a.csv", "prompt,seed\na,1\nb,1.5", "Row 2 (line 3): seed is '1.5'; it must be a whole number"),
    ("a.csv", "prompt,seed\na,1\nb,1e3", "Row 2 (line 3): seed is '1e3'"),
    ("a.csv", "prompt", "The job has no rows"),
    ("a.txt", GOOD, "a job file must be JSON Lines (.jsonl), CSV (.csv) or Parquet (.parquet)"),
    ("a", GOOD, "ends in ''"),
    ("a.json", GOOD, "ends in '.json'"),
]


def refusal(make_batch: MakeBatch, text: str, name: str) -> tuple[str, ...]:
    with pytest.raises(JobError) as refused:
        make_batch(text, name)
    for problem in refused.value.problems:
        assert_sentence(problem)
    return refused.value.problems


@pytest.fixture
def folder(tmp_path: Path, checkpoint: Path) -> Path:
    Image.new("RGB", (8, 8)).save(tmp_path / "start.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "start.gif")
    Image.new("RGB", (99, 99)).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:-60])
    (tmp_path / "old.ckpt").write_bytes(b"PK\x03\x04")
    (tmp_path / "model.safetensors").write_bytes(checkpoint.read_bytes())
    weights = load_file(checkpoint)
    bias = weights.pop("first_stage_model.decoder.conv_out.bias")
    save_file(weights, tmp_path / "lacking.safetensors")
    save_file(weights | {"first_stage_model.decoder.conv_out.bias": bias.new_zeros(7)}, tmp_path / "misshapen.safetensors")
    return tmp_path


@pytest.mark.parametrize("row,words", ROWS, ids=[str(row)[:40] for row, _ in ROWS])
def test_a_bad_row_is_one_sentence_with_its_number(
    make_batch: MakeBatch, folder: Path, row: dict[str, Any], words: str
) -> None:
    (problem,) = refusal(make_batch, f"{GOOD}\n{json.dumps(row)}\n{GOOD}\n", "job.jsonl")
    assert problem.startswith("Row 2: ")
    assert words in problem
    assert not (folder / "out").exists()


@pytest.mark.parametrize("name,text,words", FILES, ids=[f"{name} {text[:30]!r}" for name, text, _ in FILES])
def test_a_bad_file_is_one_sentence(make_batch: MakeBatch, name: str, text: str, words: str) -> None:
    problems = refusal(make_batch, text, name)
    assert any(words in problem for problem in problems), problems


BAD_YAML = {
    "{denoiser_config: {target: 0x" + "f" * 20000 + "}}": "broken.yaml has target: a number of hundreds of digits; it must be",
    "{timesteps: 20}": "Steps is 20, for which 21 timesteps are needed, and the checkpoint has 20; give fewer steps, or",
    "{unet_config: {params: {num_head_channels: 0}}}": "broken.yaml has num_head_channels: 0; it must be -1 or a whole number",
    "{unet_config: {params: {num_head_channels: 1000}}}": "broken.safetensors has an unknown architecture (its .yaml says"
    " num_head_channels: 1000, but a level has 32 channels; correct it there)",
}


@pytest.mark.parametrize("params,words", BAD_YAML.items(), ids=["target", "timesteps", "num_head_channels", "too_large"])
def test_a_value_beside_a_checkpoint_is_told_with_the_row(
    make_batch: MakeBatch, folder: Path, params: str, words: str
) -> None:
    (folder / "broken.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "broken.yaml").write_text(f"model: {{params: {params}}}")
    (problem,) = refusal(make_batch, f'{GOOD}\n{{"checkpoint": "broken"}}\n', "job.jsonl")
    assert problem.startswith(f"Row 2: {words}")


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), ZeroDivisionError("division by zero")])
def test_whatever_a_file_of_a_row_raises_is_told_with_the_row(
    make_batch: MakeBatch, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raise_it(path: Path, checkpoint: Path) -> None:
        raise error

    monkeypatch.setattr(row_files, "check_fits", raise_it)
    (folder / "odd.safetensors").write_bytes(b"")
    rows = f'{GOOD}\n{{"loras": "odd:1"}}\n{GOOD}\n{{"loras": "odd:0.5"}}\n'
    (problem,) = refusal(make_batch, rows, "job.jsonl")
    assert problem.startswith(f"Rows 2 and 4: 'odd.safetensors' cannot be used ({type(error).__name__}: ")


def test_every_bad_row_is_told_and_of_very_many_the_number(make_batch: MakeBatch) -> None:
    problems = refusal(make_batch, "\n".join(f'{{"steps": {-i}}}' for i in range(150)), "job.jsonl")
    assert [problem.split(":")[0] for problem in problems[:100]] == [f"Row {i}" for i in range(1, 101)]
    assert problems[100:] == ("50 more rows are bad; correct these first.",)


def test_rows_that_are_bad_for_one_reason_share_a_sentence(make_batch: MakeBatch) -> None:
    rows = ['{"steps": 0}', GOOD, '{"steps": 0}', '{"seed": 1.5}', "", '{"steps": 0}', '{"seed": 1.5}', '{"steps": 0}']
    problems = refusal(make_batch, "\n".join(rows), "job.jsonl")
    assert [problem.split(":")[0] for problem in problems] == ["Rows 1, 3 and 2 more", "Rows 4 and 6 (line 7)"]


def test_a_default_checkpoint_that_cannot_be_used_is_told_once_and_only_if_a_row_needs_it(
    make_batch: MakeBatch, folder: Path
) -> None:
    broken = folder / "old.ckpt"
    with pytest.raises(JobError) as refused:
        make_batch(f"{GOOD}\n" * 400, checkpoint=broken)
    (problem,) = refused.value.problems
    assert_sentence(problem)
    assert problem.startswith("Rows 1, 2 and 398 more: the --checkpoint, which rows without one need, cannot be used: old.ckpt")
    assert make_batch('{"checkpoint": "model"}', checkpoint=broken).job.rows


def test_bytes_that_are_no_utf_8_a_folder_and_a_missing_file_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "\xff"}')
    (tmp_path / "b.csv").write_bytes(b"prompt\n\xff\n")
    (tmp_path / "folder.jsonl").mkdir()
    words = {"a.jsonl": "is not UTF-8", "b.csv": "is not UTF-8", "folder.jsonl": "is a folder", "none.jsonl": "is no file"}
    for name, expected in words.items():
        with pytest.raises(JobError, match=expected) as refused:
            Batch(tmp_path / name, tmp_path / "out", Options(checkpoint=checkpoint))
        assert_sentence(refused.value.problems[0])


def test_a_file_beyond_the_bound_is_not_read(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_file, "MAX_BYTES", 10)
    assert "at most 0 MiB are read" in refusal(make_batch, GOOD, "job.jsonl")[0]


def test_parquet_without_pyarrow_says_what_to_install(make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert "pip install pyarrow" in refusal(make_batch, "PAR1", "job.parquet")[0]


def test_rows_that_are_no_dicts_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(JobError, match="Row 2: it is int; give a dict of columns"):
        Batch([{"prompt": "a"}, 7], tmp_path / "out", Options(checkpoint=checkpoint))  # type: ignore[list-item]


def test_a_table_of_pandas_is_refused_with_what_to_give(tmp_path: Path, checkpoint: Path) -> None:
    class DataFrame(list[str]):
        def to_dict(self, orient: str) -> None: ...

    with pytest.raises(SettingsError, match=r'rows is a DataFrame; give its rows as dicts, rows.to_dict\("records"\)'):
        Batch(DataFrame(["prompt"]), tmp_path / "out", Options(checkpoint=checkpoint))  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["zz", "int8", 7])
def test_a_precision_that_a_batch_has_not_is_refused_without_int8_among_those_it_has(
    tmp_path: Path, checkpoint: Path, precision: Any
) -> None:
    with pytest.raises(SettingsError, match="it must be one of auto, f32, bf16, f16 in a batch"):
        Batch([{"prompt": "a"}], tmp_path / "out", Options(checkpoint=checkpoint, precision=precision))


def parquet_tables() -> dict[str, tuple[Any, str]]:
    """Tables, and words of the sentence that refuses each."""
    pyarrow = pytest.importorskip("pyarrow")
    repeated = pyarrow.DictionaryArray.from_arrays([0] * 1000, ["x" * (1 << 20)])
    nothing = pyarrow.nulls(300_000, pyarrow.int64())
    return {
        "two columns of one name": (pyarrow.Table.from_arrays([["a"], ["b"]], ["prompt", "prompt"]), "column 'prompt' twice"),
        "bytes": (pyarrow.table({"prompt": [b"a"]}), "The column 'prompt' of a.parquet holds binary; it must hold texts"),
        "many columns": (pyarrow.table({f"c{i}": [1] for i in range(101)}), "has 101 columns"),
        "a text of 1 MiB a thousand times": (pyarrow.table({"prompt": repeated}), "more than 256 MiB once it is unpacked"),
        "300,000 empty rows": (pyarrow.table({"seed": nothing}), "longer than 250000 rows"),
        "a list of 300,000": (pyarrow.table({"seed": pyarrow.ListArray.from_arrays([0, 300_000], nothing)}), "longer than"),
    }


def test_bad_parquet_is_one_sentence_and_is_not_unpacked(tmp_path: Path, checkpoint: Path) -> None:
    tables = parquet_tables()
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    for table, words in tables.values():
        parquet.write_table(table, path, compression="zstd")
        assert path.stat().st_size < 64 << 10
        assert words in _parquet_refusal(path, checkpoint)
    path.write_bytes(path.read_bytes()[:-4] + b"PARX")
    assert "is no Parquet file that can be read" in _parquet_refusal(path, checkpoint)
    path.write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")
    assert "is no Parquet file that can be read" in _parquet_refusal(path, checkpoint)


def _parquet_refusal(path: Path, checkpoint: Path) -> str:
    with pytest.raises(JobError) as refused:
        Batch(path, path.parent / "out", Options(checkpoint=checkpoint))
    (problem,) = refused.value.problems
    assert_sentence(problem)
    return problem


def test_parquet_of_texts_numbers_and_lists_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "prompt": pyarrow.array(["a", None]),
        "negative_prompt": pyarrow.array(["b", "b"]).dictionary_encode(),
        "seed": pyarrow.array([[1, 2], [3]]),
        "cfg_scale": pyarrow.array([7.5, None]),
        "loras": pyarrow.array([{"ink": 0.5}, {"sepia": 1.0}]),
        "size": pyarrow.array([["64x64"], ["64x72"]], pyarrow.list_(pyarrow.large_string())),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    first, second = job_file.read_job_file(tmp_path / "a.parquet")
    others = {"negative_prompt": "b", "seed": [1, 2], "cfg_scale": 7.5, "loras": {"ink": 0.5}, "size": ["64x64"]}
    assert first.values == {"prompt": "a", **others}
    assert second.values == {"negative_prompt": "b", "seed": [3], "size": ["64x72"], "loras": {"sepia": 1.0}}


def test_a_job_without_an_end_is_not_read_to_its_end(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ov_backend.batch.job.MAX_ROWS", 10)
    with pytest.raises(JobError, match="The job has more than 10 rows; divide it into several files"):
        Batch(itertools.repeat({"prompt": "a"}), tmp_path / "out", Options(checkpoint=checkpoint))
