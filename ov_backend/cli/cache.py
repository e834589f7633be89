"""``python -m ov_backend cache``: the captured graphs on disk."""

from __future__ import annotations

import argparse
import contextlib
import json
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from ov_backend.cache.entry_file import unpack
from ov_backend.cache.store import Entry, GraphStore, open_store, run_store
from ov_backend.cli.arguments import add_cache_dir, add_command, print_json, size_text
from ov_backend.errors import SettingsError
from ov_backend.settings import Settings
from ov_backend.ui.snapshot import network_label, size_and_batch

#: Columns of ``list``: heading and width; a negative width is for figures.
_COLUMNS = {"NETWORK": 22, "SIZE": 14, "BATCH": -5, "ON DISK": -10, "LAST USED": 20, "KEY": 0}


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    parser = add_command(commands, "cache", run, "Look at the captured graphs on disk, check them, or remove them.")
    what = "info: how many and how large; list: each of them; verify: read every byte and look for damage; clear: remove all"
    parser.add_argument("action", choices=("info", "list", "verify", "clear"), help=what)
    add_cache_dir(parser)


def run(options: argparse.Namespace) -> int:
    """Show, check or remove the graphs; 1 where ``verify`` finds a damaged graph or a folder that is not used."""
    store = open_store(Settings(cache_dir=options.cache_dir))
    if options.cache_dir is not None and not store.folder.is_dir():
        raise SettingsError(f"--cache-dir is {options.cache_dir!r}, which is no folder; give the folder of the stored graphs.")
    actions = {"info": _info, "list": _list, "verify": _verify, "clear": _clear}
    return actions[options.action](store, options.json)


def _info(store: GraphStore, as_json: bool) -> int:
    facts = _facts(store)
    if as_json:
        print_json(facts)
    else:
        print(f"{_graphs(facts['graphs'])}, {size_text(store.bytes)} of at most {size_text(store.max_bytes)}, in {store.folder}")
    return 0


def _list(store: GraphStore, as_json: bool) -> int:
    facts, rows = _facts(store), [_row(store, entry) for entry in store.entries()]
    if as_json:
        print_json({**facts, "entries": rows})
        return 0
    print(_line(dict(zip(_COLUMNS, _COLUMNS))))
    for row in rows:
        what = (row["network"] or "other", row["size"], str(row["batch"] or ""))
        print(_line(dict(zip(_COLUMNS, (*what, size_text(row["bytes"]), _date(row["used"]), row["key"])))))
    return 0


def _verify(store: GraphStore, as_json: bool) -> int:
    facts, (damaged, old) = _facts(store), store.check()
    problem, whole = facts.get("problem"), facts["graphs"] - len(damaged) - len(old)
    if as_json:
        print_json({**facts, "whole": whole, **{name: value for name, value in (("damaged", damaged), ("old", old)) if value}})
        return 1 if damaged or problem else 0
    found = f"{whole} whole, {len(damaged)} damaged, {len(old)} of another version"
    print(f"Read every byte of {_graphs(facts['graphs'])}, {size_text(store.bytes)}, in {store.folder}: {found}.")
    for key, reason in damaged.items():
        print(f"{key} is damaged: {reason}")
    for key in old:
        print(f"{key} is an old entry of another version; it is not used, and goes when the space is needed")
    return 1 if damaged or problem else 0


def _clear(store: GraphStore, as_json: bool) -> int:
    from ov_backend.quantization.recipes import recipe_store  # it imports PyTorch

    removed, recipes, runs = store.clear(), recipe_store(store.folder).clear(), run_store(store.folder).clear()
    if as_json:
        print_json({"folder": str(store.folder), "removed": removed, "recipes": recipes, "runs": runs})
    else:
        also = [f"{recipes} recipes of int8"] * bool(recipes) + ["the notes of earlier runs"] * bool(runs)
        print(f"{_graphs(removed)} removed from {store.folder}.")
        if also:
            print(f"So are {' and '.join(also)}.")
    left = len(store.entries())
    if left:
        raise SettingsError(f"{_graphs(left)} in {store.folder} cannot be removed; check the permissions of the folder.")
    return 0


def _facts(store: GraphStore) -> dict[str, Any]:
    problem = store.problem()  # it warns on stderr
    facts = {"folder": str(store.folder), "graphs": len(store.entries()), "bytes": store.bytes, "bound": store.max_bytes}
    return {**facts, "problem": problem} if problem else facts


def _graphs(count: int) -> str:
    return "1 graph" if count == 1 else f"{count} graphs"


def _row(store: GraphStore, entry: Entry) -> dict[str, Any]:
    """One entry; without a network if the graph is one of torch.compile, or a part of one, or cannot be read."""
    network, size, batch = "", "", 0
    with contextlib.suppress(Exception):  # an entry may hold anything; what is damaged is up to verify
        described = json.loads(unpack(entry.path, store.kind, entry.key)["graph.json"])
        shapes = [tuple(int(side) for side in tensor["shape"]) for tensor in described["inputs"]]
        name = str(described["extra"].get("network", ""))
        network = network_label(name) if name.isprintable() and len(name) < 40 else ""
        signature = SimpleNamespace(tensors=[SimpleNamespace(shape=shape) for shape in shapes])
        size, batch = size_and_batch(name, signature) if network else ("x".join(map(str, shapes[0])), 0)
    return {"key": entry.key, "bytes": entry.bytes, "used": entry.used, "network": network, "size": size, "batch": batch}


def _date(seconds: float) -> str:
    when = datetime.fromtimestamp(seconds)
    return f"{when.day} {when:%b %Y, %H:%M}"


def _line(texts: dict[str, str]) -> str:
    aligned = [texts[name].ljust(width) if width >= 0 else texts[name].rjust(-width) for name, width in _COLUMNS.items()]
    return "  ".join(aligned).rstrip()
