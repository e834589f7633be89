"""Progress on standard error: a line that changes in a terminal, and a line for each network elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from ov_backend.torch_compile.report.amounts import counted
from ov_backend.ui.snapshot import STAGES, network_label

if TYPE_CHECKING:
    from ov_backend.pipelines.precompile import Size


class Progress:
    """Shows which network of which of so many sizes is being prepared."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, unit="size", disable=None, leave=False)  # None: disabled where there is no terminal
        self._size = self._shown = ""

    def begin(self, size: Size) -> None:
        """A size begins."""
        width, height, batch = size
        self._size = f"{width}x{height}, {counted(batch, 'picture')} at once"
        self._bar.set_description_str(self._size)

    def stage(self, network: str, stage: str, signature: object) -> None:
        """A network enters a stage; the engine's worker calls this."""
        if stage not in STAGES:
            return
        label = network_label(network)
        self._bar.set_postfix_str(f"{STAGES[stage]} {label}")
        line = f"{self._size}: preparing {label}"
        if self._bar.disable and line != self._shown:
            self._shown = line
            print(line, file=sys.stderr, flush=True)

    def done(self, line: str, *, to_stderr: bool) -> None:
        """A size is ready; ``line`` says so."""
        self._bar.clear()
        print(line, file=sys.stderr if to_stderr else sys.stdout, flush=True)
        self._bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
