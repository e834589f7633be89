"""Copies into a wheel what the package reads at run time; everything else about it is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: In the project's folder they lie where the WebUI looks for them, and beside the demo checkpoint. A wheel has them in
#: ``ov_backend/data``, under the same names (``ov_backend/core/package_files.py``).
DATA = ("style.css", "javascript/**/*.js", "demo_checkpoint/LICENSE", "demo_checkpoint/fluent-sd/tokenizer/*")


class BuildWithData(build_py):
    """Builds the package together with its data; an editable installation reads them where they lie."""

    def run(self):
        """Build the package, and copy the data."""
        super().run()
        if not self.editable_mode:
            for source in _data():
                target = Path(self.build_lib, "ov_backend", "data", source)
                self.mkpath(str(target.parent))
                self.copy_file(source, str(target))

    def get_source_files(self):
        """The files that a source distribution holds."""
        return [*super().get_source_files(), *_data()]


def _data():
    return sorted(path.as_posix() for pattern in DATA for path in Path().glob(pattern))


setup(cmdclass={"build_py": BuildWithData})
