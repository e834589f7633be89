"""``python -m ov_backend devices``: the devices that OpenVINO finds on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from ov_backend.cli.arguments import add_command, print_json


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    add_command(commands, "devices", run, "List the devices that OpenVINO finds here.")


def run(options: argparse.Namespace) -> int:
    """List the devices; the exit code is 0."""
    from ov_backend.core.devices import list_devices

    devices = [device.as_dict() for device in list_devices()]
    if options.json:
        print_json(devices)
        return 0
    for device in devices:
        precisions = ", ".join(device["precisions"])
        print(f"{device['name']:8}{device['full_name']} ({precisions}; by default {device['default_precision']})")
    return 0
