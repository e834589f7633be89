"""Writes the CLIP tokenizer's files from the vocabulary in the open_clip_torch package."""

from __future__ import annotations

import argparse
import gzip
import json
import zipfile
from pathlib import Path

from .bpe import byte_characters
from .paths import TOKENIZER_DIR

MERGES = 49152 - 256 - 2
MEMBER = "open_clip/bpe_simple_vocab_16e6.txt.gz"


def read_merges(wheel: Path) -> list[str]:
    """The merge rules of an open_clip_torch wheel, best first."""
    with zipfile.ZipFile(wheel) as archive:
        lines = gzip.decompress(archive.read(MEMBER)).decode("utf-8").split("\n")
    return lines[1 : MERGES + 1]


def vocabulary(merges: list[str]) -> dict[str, int]:
    """Ids by token, in CLIP's order: bytes, bytes that end a word, merges, the two special tokens."""
    characters = list(byte_characters().values())
    tokens = [*characters, *(char + "</w>" for char in characters), *("".join(m.split()) for m in merges)]
    return {token: index for index, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}


def write(wheel: Path, folder: Path) -> None:
    """Write vocab.json, merges.txt and the two small configuration files."""
    folder.mkdir(parents=True, exist_ok=True)
    merges = read_merges(wheel)
    (folder / "vocab.json").write_text(
        json.dumps(vocabulary(merges), ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    special = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
    }
    settings = {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": 77,
        "do_lower_case": True,
        "errors": "replace",
        "add_prefix_space": False,
        **special,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")


def main() -> None:
    """Parse the command line and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="an open_clip_torch wheel (pip download --no-deps open_clip_torch)")
    parser.add_argument("--out", type=Path, default=TOKENIZER_DIR)
    arguments = parser.parse_args()
    write(arguments.wheel, arguments.out)


if __name__ == "__main__":
    main()
