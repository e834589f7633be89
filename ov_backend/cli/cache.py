"""``python -m ov_backend cache``: the captured graphs on disk."""

from __future__ import annotations

import argparse
from typing import Any

from ov_backend.cli.arguments import add_cache_dir, add_command, print_json
from ov_backend.errors import SettingsError
from ov_backend.settings import Settings


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    parser = add_command(commands, "cache", run, "Look at the captured graphs on disk, check them, or remove them.")
    what = "info: how many and how large; list: each of them; verify: look for damage; clear: remove all"
    parser.add_argument("action", choices=("info", "list", "verify", "clear"), help=what)
    add_cache_dir(parser)


def run(options: argparse.Namespace) -> int:
    """Show, check or remove the graphs; 1 where ``verify`` finds a damaged graph or a folder that is not used."""
    from ov_backend.compiler import open_store

    store = open_store(Settings(cache_dir=options.cache_dir))
    if options.cache_dir is not None and not store.folder.is_dir():
        raise SettingsError(f"--cache-dir is {options.cache_dir!r}, which is no folder; give the folder of the stored graphs.")
    if options.action == "clear":
        removed = store.clear()
        print_json({"folder": str(store.folder), "removed": removed}) if options.json else print(
            f"{removed} graphs removed from {store.folder}."
        )
        left = len(store.entries())
        if left:
            raise SettingsError(f"{left} graphs in {store.folder} cannot be removed; check the permissions of the folder.")
        return 0
    entries: list[dict[str, Any]] = [{"key": e.key, "bytes": e.bytes, "used": e.used} for e in store.entries()]
    damaged, old = store.check() if options.action == "verify" else ({}, [])
    problem = store.problem()  # it warns on stderr
    info = {"folder": str(store.folder), "graphs": len(entries), "bytes": store.bytes, "bound": store.max_bytes}
    if options.json:
        listed = {"entries": entries} if options.action == "list" else {}
        faults = {name: value for name, value in (("damaged", damaged), ("old", old), ("problem", problem)) if value}
        print_json({**info, **listed, **faults})
    elif options.action == "list":
        for entry in entries:
            print(f"{entry['key']}  {entry['bytes'] / 1e6:8.2f} MB")
    else:
        print(f"{len(entries)} graphs, {store.bytes / 1e6:.1f} of at most {store.max_bytes / 1e6:.0f} MB, in {store.folder}")
        for key, reason in damaged.items():
            print(f"{key} is damaged: {reason}")
        for key in old:
            print(f"{key} is an old entry of another version; it is not used, and goes when the space is needed")
    return 1 if damaged or (problem and options.action == "verify") else 0
