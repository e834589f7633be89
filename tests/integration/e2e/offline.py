"""Tokenizers that SD3 asks the model hub for, planted in an offline cache of the suite's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

CLIP, T5 = "openai/clip-vit-large-patch14", "google/t5-v1_1-xxl"
_REVISION = "0" * 40


def cache_with_tokenizers(folder: Path) -> dict[str, str]:
    """The environment in which both tokenizers are found offline; empty where the user's own cache has them."""
    own = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")) / "hub"
    if all((own / _folder_of(name)).exists() for name in (CLIP, T5)):
        return {}
    files = ("vocab.json", "merges.txt", "special_tokens_map.json", "tokenizer_config.json")
    clip = Path(__file__).parents[3] / "demo_checkpoint" / "fluent-sd" / "tokenizer"
    _plant(folder, CLIP, {name: (clip / name).read_text(encoding="utf-8") for name in files})
    _plant(folder, T5, {"tokenizer.json": json.dumps(_T5), "tokenizer_config.json": "{}"})
    return {"HF_HOME": str(folder)}


def _folder_of(name: str) -> str:
    return f"models--{name.replace('/', '--')}"


def _plant(folder: Path, name: str, files: dict[str, str]) -> None:
    root = folder / "hub" / _folder_of(name)
    snapshot = root / "snapshots" / _REVISION
    for path in (snapshot, root / "refs"):
        path.mkdir(parents=True)
    (root / "refs" / "main").write_text(_REVISION)
    for file, text in files.items():
        (snapshot / file).write_text(text, encoding="utf-8")


def _special(number: int, content: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": content, **flags}


#: A tokenizer of four words: T5 stays off, because its size is fixed at 4.8 billion weights.
_T5 = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [_special(0, "<pad>"), _special(1, "</s>"), _special(2, "<unk>")],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
    },
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3}, "unk_token": "<unk>"},
}
