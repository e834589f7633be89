"""The CLIP byte-pair tokenizer in Python, for machines without transformers."""

from __future__ import annotations

import functools
import itertools
import json
import re
from pathlib import Path

START, END, LENGTH = 49406, 49407, 77
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|(?:[^\s\w]|_)+")


@functools.cache
def byte_characters() -> dict[int, str]:
    """The printable character that represents each byte (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


class Tokenizer:
    """Maps text to the 77 token ids of Stable Diffusion 1: start, text, then end tokens up to the full length."""

    def __init__(self, folder: Path) -> None:
        self.ids: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").strip().split("\n")[1:]
        self.ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        self.cache: dict[str, tuple[int, ...]] = {}

    def word(self, word: str) -> tuple[int, ...]:
        """The ids of one white-space-free piece of lower-case text."""
        if word not in self.cache:
            pieces = [match.group() for match in WORDS.finditer(word)]
            self.cache[word] = tuple(i for piece in pieces for i in self._merge(piece))
        return self.cache[word]

    def _merge(self, piece: str) -> list[int]:
        table = byte_characters()
        parts = [table[byte] for byte in piece.encode("utf-8")]
        parts[-1] += "</w>"
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            index = pairs.index(best)
            parts[index : index + 2] = ["".join(best)]
        return [self.ids[part] for part in parts]

    def encode(self, text: str) -> list[int]:
        """The 77 ids of a caption, which is cut off if it is too long."""
        ids = [i for word in text.lower().split() for i in self.word(word)][: LENGTH - 2]
        return [START, *ids, *[END] * (LENGTH - 1 - len(ids))]
