"""Which versions of torch and Python are tried together."""

from __future__ import annotations

from dataclasses import dataclass

#: Compare with eager PyTorch, or are about what a version of torch or Python can change.
TESTS = (
    *("tests/test_init.py", "tests/test_exit.py", "tests/model/test_compiler.py", "tests/guards"),
    *("tests/engine/test_engine.py", "tests/engine/test_network.py", "tests/engine/test_compile_job.py"),
    *("tests/torch_compile/test_backend.py", "tests/torch_compile/test_results.py"),
    *("tests/torch_compile/test_soundness.py", "tests/torch_compile/test_lifetimes.py"),
)

#: Beside torch, OpenVINO and what the package asks for. Without transformers and diffusers some tests are skipped.
REQUIREMENTS = ("pytest>=8", "pillow", "setuptools<81", "einops", "omegaconf", "hypothesis", "expecttest")
#: The original ldm classes; what they ask for beyond torch is not needed here.
WITHOUT_DEPENDENCIES = ("stable-diffusion-sdkit==2.1.5",)


@dataclass(frozen=True)
class Cell:
    """One environment.

    Attributes:
        torch: a release.
        python: its minor version.
        also: requirements that only this cell has.
    """

    torch: str
    python: str
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"torch {self.torch}, Python {self.python}"


#: Releases before 2.3 were built for numpy 1.
_OLD = ("numpy<2",)
CELLS = (
    Cell("2.1.2", "3.10", _OLD),
    Cell("2.1.2", "3.11", _OLD),
    Cell("2.3.1", "3.10"),
    Cell("2.4.1", "3.12"),
    Cell("2.5.1", "3.11"),
    Cell("2.6.0", "3.13"),
    Cell("2.7.1", "3.10"),
    Cell("2.8.0", "3.12"),
    Cell("2.9.1", "3.13"),
    Cell("2.10.0", "3.11"),
    Cell("2.11.0", "3.12"),
    Cell("2.12.1", "3.10"),
    Cell("2.13.0", "3.10"),
    Cell("2.13.0", "3.11"),
    Cell("2.13.0", "3.12"),
    Cell("2.13.0", "3.13"),
)
