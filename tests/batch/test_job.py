"""What a job's rows become: spellings, defaults, grids, CSV and Parquet, seeds, and the order in which they run."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

pytest.importorskip("diffusers")

import itertools

from ov_backend.batch import row_files
from ov_backend.batch.api import Batch, Options
from ov_backend.batch.columns import COLUMNS, read_columns, read_value
from ov_backend.batch.job import expand
from ov_backend.batch.job_file import MAX_ROWS
from ov_backend.batch.pictures import sha256
from ov_backend.batch.plan import groups, ordered
from ov_backend.batch.row import Row
from ov_backend.core.errors import JobError
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.ui.infotext import Parameters
from tests.batch.conftest import MakeBatch


def rows(make_batch: MakeBatch, *args: object, **options: object) -> list[Row]:
    return make_batch(*args, **options).job.rows


def test_both_spellings_of_every_column_are_read(make_batch: MakeBatch, tmp_path: Path, checkpoint: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "start.png")
    (tmp_path / "other.safetensors").write_bytes(checkpoint.read_bytes())
    of_api = {
        "prompt": "a cat", "negative_prompt": "a dog", "seed": 7, "width": 64, "height": 72, "steps": 4, "cfg_scale": 3.5,
        "sampler_name": "DPM++ 2M", "scheduler": "karras", "batch_size": 2, "checkpoint": "other.safetensors",
        "init_image": "start.png", "denoising_strength": 0.5, "precision": "f32",
    }
    of_infotext = {
        "Prompt": "a cat", "Negative prompt": "a dog", "Seed": "7", "Size": "64x72", "Steps": "4", "CFG scale": "3.5",
        "Sampler": "DPM++ 2M", "Schedule type": "Karras", "Batch size": "2", "Model": "other", "Denoising strength": "0.5",
        "init_images": "start.png", "Precision": "F32",
    }
    first, second = rows(make_batch, [of_api, of_infotext])
    assert first.parameters == second.parameters
    assert first.parameters == Parameters("a cat", "a dog", 4, 3.5, 7, 64, 72, 2, 0.5, "DPM++ 2M Karras")
    assert (first.checkpoint, first.picture) == (tmp_path / "other.safetensors", tmp_path / "start.png")
    assert first.files == ("000001-7.png", "000001-8.png")


def test_what_a_row_leaves_out_is_the_default(make_batch: MakeBatch, checkpoint: Path) -> None:
    (row,) = rows(make_batch, [{"prompt": "a cat", "seed": None}])
    assert row.checkpoint == checkpoint
    assert row.parameters == Parameters("a cat", seed=row.parameters.seed, width=64, height=64, sampler="DPM++ 2M")
    assert row.precision == "f32"


def test_a_seed_that_is_not_given_is_the_same_every_time_and_another_for_each_row(make_batch: MakeBatch) -> None:
    job = [{"prompt": "a cat"}, {"prompt": "a cat", "seed": -1}]
    first = [row.parameters.seed for row in rows(make_batch, job)]
    assert first == [row.parameters.seed for row in rows(make_batch, job)]
    assert len(set(first)) == 2
    assert all(0 <= seed < 1 << 32 for seed in first)


def test_lists_multiply_and_the_last_varies_fastest(make_batch: MakeBatch) -> None:
    batch = make_batch([{"prompt": "x"}, {"prompt": ["a", "b"], "seed": [1, 2, 3]}])
    assert [(row.number, row.source, row.parameters.prompt, row.parameters.seed) for row in batch.job.rows[1:]] == [
        (2, 2, "a", 1), (3, 2, "a", 2), (4, 2, "a", 3), (5, 2, "b", 1), (6, 2, "b", 2), (7, 2, "b", 3),
    ]
    assert (batch.job.sources, batch.job.grids, batch.job.pictures) == (2, 1, 7)


def test_csv_with_quotes_empty_cells_and_a_byte_order_mark(make_batch: MakeBatch) -> None:
    text = '\ufeffprompt,seed,cfg scale\n"a ""big"" cat,\nsitting",3,\n\nb,,5\n'
    first, second = rows(make_batch, text, "job.csv")
    assert (first.parameters.prompt, first.parameters.seed, first.parameters.guidance) == ('a "big" cat,\nsitting', 3, 7.0)
    assert (second.parameters.prompt, second.parameters.guidance) == ("b", 5.0)


def test_lines_of_commas_are_no_rows(make_batch: MakeBatch) -> None:
    assert [row.parameters.prompt for row in rows(make_batch, "prompt,seed\na,1\n,\n , \n,,,\nb,2\n,\n", "job.csv")] == ["a", "b"]


def test_values_of_numpy_and_paths_are_read(checkpoint: Path, tmp_path: Path) -> None:
    import numpy as np

    Image.new("RGB", (8, 8)).save(tmp_path / "start.png")
    row = {"seed": np.int64(5), "cfg_scale": np.float32(2.5), "checkpoint": checkpoint, "init_image": tmp_path / "start.png"}
    (read,) = Batch([row], tmp_path / "out", Options()).job.rows
    assert (read.parameters.seed, read.parameters.guidance, read.checkpoint) == (5, 2.5, checkpoint)
    assert type(read.parameters.seed) is int
    assert read.picture == tmp_path / "start.png"
    with pytest.raises(JobError, match="seed is array"):
        Batch([{"seed": np.arange(3)}], tmp_path / "out", Options(checkpoint=checkpoint))


def test_whole_numbers_as_pandas_writes_them_are_read(make_batch: MakeBatch) -> None:
    first, second = rows(make_batch, "prompt,seed,steps,size\na,1.0,+5,64\nb,,4.,64\n", "job.csv")
    assert (first.parameters.seed, first.parameters.steps, second.parameters.steps) == (1, 5, 4)


def test_tuples_and_ranges_multiply_as_lists_do(checkpoint: Path, tmp_path: Path) -> None:
    job = Batch([{"seed": range(2), "prompt": ("a", "b"), "size": 64}], tmp_path / "out", Options(checkpoint=checkpoint)).job
    assert [(row.parameters.seed, row.parameters.prompt) for row in job.rows] == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert job.rows[0].parameters.width == 64
    with pytest.raises(JobError, match="longer than 250000 rows"):
        Batch([{"seed": range(10**15)}], tmp_path / "out", Options(checkpoint=checkpoint))


def test_a_checkpoint_in_several_spellings_is_one(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(checkpoint, tmp_path / "elsewhere" / "second.safetensors")
    (tmp_path / "ck" / "second.safetensors").symlink_to(tmp_path / "elsewhere" / "second.safetensors")
    (tmp_path / "second.safetensors").symlink_to(checkpoint)
    monkeypatch.chdir(tmp_path)
    absolute = str(tmp_path / "ck" / "second.safetensors")
    spellings = ["ck/second", absolute, "./ck/second.safetensors", "ck/../ck/second"]
    for default in (Path("ck/second"), Path("ck/../ck/second.safetensors")):
        job = Batch([{"checkpoint": spellings}, {"prompt": "a"}], Path("out"), Options(checkpoint=default)).job
        assert {row.checkpoint for row in job.rows} == {Path(absolute)}, "the link's own path: a .yaml lies beside it"
    (titled,) = Batch([{"Model": "second.safetensors [6ce0161689]", "Model hash": "6ce0"}], Path("out"), Options()).job.rows
    assert titled.checkpoint == tmp_path / "second.safetensors"
    (tmp_path / "elsewhere" / "deep").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    (other,) = Batch([{"checkpoint": "link/../second"}], Path("out"), Options()).job.rows
    assert other.checkpoint.samefile(tmp_path / "elsewhere" / "second.safetensors"), "link/.. is not this folder"


def test_the_project_s_own_checkpoint_is_found_by_the_name_in_its_pictures(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "TRAINED", checkpoint)
    (row,) = Batch([{"Model": checkpoint.stem}], tmp_path / "out", Options()).job.rows
    assert row.checkpoint == checkpoint


def test_a_lora_of_two_names_is_refused_and_one_of_strength_0_makes_no_group(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_v"
    save_file({f"{name}.lora_down.weight": torch.ones(2, 64), f"{name}.lora_up.weight": torch.ones(32, 2)}, "ink.safetensors")
    (row,) = Batch([{"prompt": "a <lora:ink:0>"}], Path("out"), Options(checkpoint=checkpoint)).job.rows
    assert row.loras == ()
    with pytest.raises(JobError, match=r"the LoRA 'ink' is named twice, once as './ink\.safetensors'; leave one of them"):
        Batch([{"prompt": "a <lora:ink:1>", "loras": {"./ink.safetensors": 0.5}}], Path("out"), Options(checkpoint=checkpoint))


def test_prompts_of_more_chunks_of_tokens_are_a_group_of_their_own(make_batch: MakeBatch) -> None:
    long = "a " * 76
    read = rows(make_batch, [{"prompt": ["a", long, "b" * 76]}, {"negative_prompt": long, "cfg_scale": [7, 1]}])
    assert [row.chunks for row in read] == [1, 2, 1, 2, 1]
    labels = [group.label for group in groups(ordered(read))]
    assert sum("prompts of 76 to 150 tokens" in label for label in labels) == 1


def test_parquet_is_read(make_batch: MakeBatch, tmp_path: Path, checkpoint: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from ov_backend.batch.api import Batch, Options

    parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "seed": [1, None]}), tmp_path / "job.parquet")
    job = Batch(tmp_path / "job.parquet", tmp_path / "out", Options(checkpoint=checkpoint)).job
    assert [row.parameters.prompt for row in job.rows] == ["a", "b"]
    assert job.rows[0].parameters.seed == 1


def row(number: int, checkpoint: str, lora: str, side: int, precision: str = "f32") -> Row:
    loras = ((Path(lora), 1.0),) if lora else ()
    return Row(number, number, Parameters("x", seed=1, width=side, height=side), Path(checkpoint), precision, None, loras)


def test_checkpoints_mixes_and_sizes_change_as_rarely_as_possible() -> None:
    kinds = [(c, lora, side) for c in "AB" for lora in ("", "x", "y", "z") for side in (64, 128, 256)]
    shuffled = kinds * 4
    random.Random(0).shuffle(shuffled)
    order = ordered(row(i, *kind) for i, kind in enumerate(shuffled, 1))
    assert sorted(each.number for each in order) == list(range(1, len(shuffled) + 1))
    changes = [(a.checkpoint != b.checkpoint, a.loras != b.loras) for a, b in itertools.pairwise(order)]
    assert sum(checkpoint for checkpoint, _ in changes) == 1
    assert sum(checkpoint or loras for checkpoint, loras in changes) == 7
    found = list(groups(order))
    assert len(found) == 24
    assert all(len(group.rows) == 4 for group in found)
    assert order[0].number == 1, "what comes first in the job comes first"


def test_a_digest_covers_what_the_pixels_depend_on_and_no_name(tmp_path: Path) -> None:
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)

    def digest(checkpoint: str, lora: str = "", side: int = 64, precision: str = "f32") -> str:
        made = row(1, str(tmp_path / checkpoint), str(tmp_path / lora) if lora else "", side, precision)
        return made.digest(sha256, "CPU")

    assert digest("a") == digest("b")
    others = [digest("a"), digest("c"), digest("a", "a"), digest("a", "c"), digest("a", side=128), digest("a", precision="bf16")]
    assert len(set(others)) == len(others)


def test_the_digest_of_a_file_sees_every_byte(tmp_path: Path) -> None:
    path, data = tmp_path / "large", random.Random(0).randbytes((2 << 20) + 7)
    path.write_bytes(data)
    before = sha256(path)
    assert before == hashlib.sha256(data).hexdigest()
    for place in (0, 1 << 20, len(data) - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert sha256(path) != before
    with pytest.raises(FileNotFoundError):
        sha256(tmp_path / "none")


def test_the_page_has_every_column_and_its_example_is_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")
    table = "\n".join(line.partition(" | ")[0] for line in page.splitlines() if line.startswith("| `"))
    assert all(f"`{column}`" in table for column in COLUMNS)
    example = page.partition("```json\n")[2].partition("```")[0].splitlines()
    assert len(example) == 3
    for line in example:
        columns = read_columns(json.loads(line))
        for values in expand(columns):
            for column, value in values.items():
                read_value(column, value)
    assert "250,000 rows" in page
    assert MAX_ROWS == 250_000


def test_a_checkpoint_that_is_known_has_its_own_guidance_and_steps(checkpoint: Path, tmp_path: Path) -> None:
    own = suggestions_for("fluent-sd")
    known = tmp_path / "fluent-sd.safetensors"
    known.symlink_to(checkpoint)
    first, second, other = Batch(
        [{"checkpoint": str(known)}, {"checkpoint": str(known), "cfg_scale": 7, "steps": 3}, {}],
        tmp_path / "out",
        Options(checkpoint=checkpoint),
    ).job.rows
    assert (first.parameters.guidance, first.parameters.steps) == (own.guidance, own.steps) == (4.0, 20)
    assert (second.parameters.guidance, second.parameters.steps) == (7.0, 3)
    assert other.parameters.guidance == 7.0
