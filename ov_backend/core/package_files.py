"""Where the files lie that the package reads at run time: the page's scripts and style, and the tokenizer.

In the project's folder that is where the WebUI looks for them, and beside the demo checkpoint. A wheel has copies under the same
names in the folder ``data`` of the package, where ``setup.py`` puts them.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_COPIES = _PACKAGE / "data"
#: Whether a wheel was installed; otherwise the package runs from the project's folder.
IS_INSTALLED = _COPIES.is_dir()
ROOT = _COPIES if IS_INSTALLED else _PACKAGE.parent
#: The standard CLIP vocabulary, which is part of the demo checkpoint.
TOKENIZER = ROOT / "demo_checkpoint" / "fluent-sd" / "tokenizer"
#: The project's own trained checkpoint; a wheel does not hold it.
TRAINED = ROOT / "demo_checkpoint" / "fluent-sd.safetensors"
