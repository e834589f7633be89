"""Fetches the picture packages with npm, unpacks them, and checks their licences."""

from __future__ import annotations

import json
import logging
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from .paths import work_dir

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Package:
    """One npm package, pinned."""

    name: str
    version: str
    use: str

    @property
    def archive(self) -> str:
        """The file name that ``npm pack`` gives it."""
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


PACKAGES = {
    "3d": Package("@lobehub/fluent-emoji-3d", "1.1.0", "3D pictures, 256 px WebP with alpha"),
    "flat": Package("@iconify-json/fluent-emoji-flat", "1.2.6", "flat pictures, SVG"),
    "line art": Package("@iconify-json/fluent-emoji-high-contrast", "1.2.6", "line art pictures, SVG"),
    "names": Package("unicode-emoji-json", "0.9.0", "names and groups"),
    "keywords": Package("emojilib", "4.0.3", "keywords"),
}


def fetch(key: str) -> Path:
    """Download and unpack one package unless that was done before; returns the folder of its package.json.

    Raises:
        RuntimeError: npm failed, or the package is not under the MIT licence.
    """
    package = PACKAGES[key]
    folder = work_dir() / "packages"
    target = folder / package.archive.removesuffix(".tgz")
    if not (target / "package" / "package.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / package.archive
        if not archive.exists():
            command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
            process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if process.returncode:
                raise RuntimeError(f"npm could not fetch {package.name}@{package.version}: {process.stderr.strip()[-300:]}")
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    return checked(target / "package", package)


def checked(folder: Path, package: Package) -> Path:
    """Return ``folder`` after checking that its package.json states the MIT licence."""
    licence = json.loads((folder / "package.json").read_text()).get("license")
    if licence != "MIT":
        raise RuntimeError(f"{package.name}@{package.version} states the licence {licence!r}; MIT was expected")
    return folder


def licences() -> list[dict[str, str]]:
    """The licence notice of each package, for the model card."""
    rows = []
    for key, package in PACKAGES.items():
        folder = fetch(key)
        notice = next((line.strip() for line in read_licence(folder).splitlines() if "Copyright" in line), "")
        if (info := folder / "info.json").exists():
            metadata = json.loads(info.read_text())
            notice = f"{metadata['author']['name']}, {metadata['license']['title']}"
        rows.append({"package": f"{package.name}@{package.version}", "use": package.use, "licence": "MIT", "notice": notice})
    return rows


def read_licence(folder: Path) -> str:
    """The licence text of a package, or its README if it has no licence file."""
    for name in ("LICENSE", "LICENSE.md", "README.md"):
        if (folder / name).exists():
            return (folder / name).read_text()
    return ""
