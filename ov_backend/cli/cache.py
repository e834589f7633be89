"""``python -m ov_backend cache``: the captured graphs on disk."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from ov_backend.cli.arguments import add_cache_dir, add_command, cache_dir, print_json
from ov_backend.core.amounts import counted, size_text
from ov_backend.core.errors import SettingsError, first_line
from ov_backend.core.settings import Settings
from ov_backend.store.entry_file import DAMAGE, OtherVersion, unpack
from ov_backend.store.ownership import folder_problem
from ov_backend.store.store import Entry, GraphStore, open_all
from ov_backend.ui.snapshot import network_label, size_and_batch

Stores = Sequence[GraphStore]

#: Columns of ``list``: heading and width; a negative width is for figures.
_COLUMNS = {"NETWORK": 22, "SIZE": 14, "BATCH": -5, "ON DISK": -10, "LAST USED": 20, "KEY": 0}


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    parser = add_command(commands, "cache", run, "Look at the stored graphs on disk, check them, or remove them.")
    what = "info: how many and how large; list: each of them; verify: read every byte and look for damage;"
    what += " clear: remove all, also blobs and what int8 has learnt"
    parser.add_argument("action", choices=("info", "list", "verify", "clear"), help=what)
    add_cache_dir(parser)
    parser.add_argument("--yes", action="store_true", help="clear without asking")


def run(options: argparse.Namespace) -> int:
    """Show, check or remove the graphs; 1 where ``verify`` finds a damaged graph or a folder that is not used."""
    stores = open_all(Settings(cache_dir=cache_dir(options)))
    graphs, *beside = stores
    if options.cache_dir is not None and not graphs.folder.is_dir():
        raise SettingsError(f"--cache-dir is {options.cache_dir!r}, which is no folder; give the folder of the stored graphs.")
    if options.action == "list":
        return _list(graphs, options.json)
    if options.action == "clear":
        return _clear(stores, options)
    act = {"info": _info, "verify": _verify}[options.action]
    return act([graphs, *(store for store in beside if store.entries())], options.json)


def _info(stores: Stores, as_json: bool) -> int:
    facts = _facts(stores[0])
    if as_json:
        beside = {f"{store.kind.noun}s": _facts(store) for store in stores[1:]}
        print_json({**facts, "beside": beside})
    else:
        for store in stores:
            print(f"{_amount([store])} of at most {size_text(store.max_bytes)}, in {store.folder}")
    return 0


def _amount(stores: Stores) -> str:
    """How many entries of each kind there are, and their size."""
    kinds = ", ".join(counted(len(store.entries()), store.kind.noun) for store in stores)
    return f"{kinds}, {size_text(sum(store.bytes for store in stores))}"


def _list(store: GraphStore, as_json: bool) -> int:
    facts, rows, damaged = _facts(store), list[dict[str, Any]](), dict[str, str]()
    for entry in store.entries():
        try:
            content = _content(store, entry)
        except FileNotFoundError:  # it was evicted meanwhile
            continue
        except DAMAGE as error:
            content, damaged[entry.key] = {}, getattr(error, "strerror", None) or first_line(error)
        rows.append(_row(entry, content))
    if as_json:
        print_json({**facts, "entries": rows, "damaged": damaged})
        return 0
    if not rows:
        print(f"No graphs are stored in {store.folder}.")
        return 0
    print(_line(dict(zip(_COLUMNS, _COLUMNS))))
    for row in (row for row in rows if row["key"] not in damaged):
        what = (row["network"] or "other", row["size"], str(row["batch"] or ""))
        print(_line(dict(zip(_COLUMNS, (*what, size_text(row["bytes"]), _date(row["used"]), row["key"])))))
    _print_damaged(store, damaged)
    return 0


def _verify(stores: Stores, as_json: bool) -> int:
    found = dict[str, dict[str, Any]]()
    for store in stores:
        damaged, old = store.check()
        whole = len(store.entries()) - len(damaged) - len(old)
        found[f"{store.kind.noun}s"] = {**_facts(store), "whole": whole, "damaged": damaged, "old": old}
        if not as_json:
            counts = f"{whole} whole, {len(damaged)} damaged, {len(old)} of another version"
            print(f"Read every byte of {_amount([store])}, in {store.folder}: {counts}.")
            _print_damaged(store, damaged)
            for key in old:
                print(f"{key} is an old entry of another version; it is not used, and goes when the space is needed")
    is_whole = not any(facts["damaged"] or "problem" in facts for facts in found.values())
    if as_json:
        print_json({**found.pop("graphs"), "beside": found})
    return 0 if is_whole else 1


def _clear(stores: Stores, options: argparse.Namespace) -> int:
    present = [store for store in stores if store.entries()]
    for store in present:
        if problem := folder_problem(store.folder):
            raise SettingsError(f"The {store.kind.noun}s in {store.folder} are not removed: {problem}.")
    folder = stores[0].folder
    if present and not options.yes:
        _confirm(f"{_amount(present)}, in {folder}", options.json)
    removed = {store.kind.noun: store.clear() for store in stores}
    if options.json:
        counts = {f"{noun}s": count for noun, count in removed.items()}
        print_json({"folder": str(folder), "removed": counts.pop("graphs"), **counts})
    else:
        listed = ", ".join(counted(count, noun) for noun, count in removed.items() if count or noun == "graph")
        print(f"{listed} removed from {folder}.")
    left = [store for store in stores if store.entries()]
    if left:
        raise SettingsError(f"{_amount(left)}, in {folder} cannot be removed; check their owner and the folder's.")
    return 0


def _confirm(what: str, as_json: bool) -> None:
    """Ask whether it is to be removed, if somebody can be asked. Raises SettingsError if it is not."""
    if as_json or not sys.stdin or not sys.stdin.isatty():
        raise SettingsError(f"clear would remove {what}; give --yes to have that done.")
    print(f"Remove {what}? The next pictures need them made again. [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SettingsError("Nothing is removed; answer y, or give --yes, to have it removed.")


def _facts(store: GraphStore) -> dict[str, Any]:
    problem = store.problem()  # it warns on stderr
    facts = {"folder": str(store.folder), f"{store.kind.noun}s": len(store.entries())}
    return {**facts, "bytes": store.bytes, "bound": store.max_bytes, **({"problem": problem} if problem else {})}


def _print_damaged(store: GraphStore, damaged: dict[str, str]) -> None:
    for key, reason in damaged.items():
        file = store.folder / f"{key}{store.kind.suffix}"
        advice = f"It is not used, and made again when it is needed. You can remove {file}."
        print(f"{key} is damaged: {reason}. {advice}")


def _content(store: GraphStore, entry: Entry) -> dict[str, bytes]:
    """What an entry holds; nothing where another version wrote it."""
    try:
        return unpack(entry.path, store.kind, entry.key)
    except OtherVersion:
        return {}


def _row(entry: Entry, content: dict[str, bytes]) -> dict[str, Any]:
    """One entry; without a network if the graph is one of torch.compile, or a part of one, or of another version."""
    network, size, batch = "", "", 0
    with contextlib.suppress(Exception):  # an entry may hold anything
        described = json.loads(content["graph.json"])
        shapes = [tuple(int(side) for side in tensor["shape"]) for tensor in described["inputs"]]
        name = str(described["extra"].get("network", ""))
        network = network_label(name) if name.isprintable() and len(name) < 40 else ""
        signature = SimpleNamespace(tensors=[SimpleNamespace(shape=shape) for shape in shapes])
        size, batch = size_and_batch(name, signature) if network else ("x".join(map(str, shapes[0])), 0)
    last_used = datetime.fromtimestamp(entry.used).astimezone().isoformat(timespec="seconds")
    times = {"used": entry.used, "last_used": last_used}
    return {"key": entry.key, "bytes": entry.bytes, **times, "network": network, "size": size, "batch": batch}


def _date(seconds: float) -> str:
    when = datetime.fromtimestamp(seconds)
    return f"{when.day} {when:%b %Y, %H:%M}"


def _line(texts: dict[str, str]) -> str:
    aligned = [texts[name].ljust(width) if width >= 0 else texts[name].rjust(-width) for name, width in _COLUMNS.items()]
    return "  ".join(aligned).rstrip()
