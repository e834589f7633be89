"""Installs OpenVINO and xxhash into the WebUI's environment if they are not there.

An older OpenVINO is left as it is, and the user is told.
"""

import importlib.metadata

import launch

OLDEST = (2026, 1)


def installed(package):
    """The version of a package that is installed, as numbers; None where there is none."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def install():
    """Install what is missing, or say what to run where the one that is installed is too old; nothing is upgraded unasked."""
    oldest = ".".join(map(str, OLDEST))
    found = installed("openvino")
    if found is None:
        launch.run_pip(f'install "openvino>={oldest}"', "OpenVINO for the Accelerate with OpenVINO script")
    elif found < OLDEST:
        version = ".".join(map(str, found))
        print(f'OpenVINO {version} is installed, and the script needs {oldest} or newer: pip install "openvino>={oldest}"')
    if installed("xxhash") is None:
        try:
            launch.run_pip("install xxhash", "xxhash for the Accelerate with OpenVINO script")
        except RuntimeError:
            print("xxhash could not be installed; is this machine offline? The script works without it, only slower.")


install()
