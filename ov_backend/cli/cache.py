"""``python -m ov_backend cache``: the captured graphs on disk."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from ov_backend.cli.arguments import add_cache_dir, add_command, cache_dir, print_json
from ov_backend.core.amounts import counted, size_text
from ov_backend.core.errors import SettingsError, first_line
from ov_backend.core.settings import Settings
from ov_backend.int8.recipe_store import recipe_store
from ov_backend.store.entry_file import DAMAGE, OtherVersion, unpack
from ov_backend.store.ownership import folder_problem
from ov_backend.store.store import Entry, GraphStore, open_store, run_store
from ov_backend.ui.snapshot import network_label, size_and_batch

#: Columns of ``list``: heading and width; a negative width is for figures.
_COLUMNS = {"NETWORK": 22, "SIZE": 14, "BATCH": -5, "ON DISK": -10, "LAST USED": 20, "KEY": 0}


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    parser = add_command(commands, "cache", run, "Look at the stored graphs on disk, check them, or remove them.")
    what = "info: how many and how large; list: each of them; verify: read every byte and look for damage;"
    what += " clear: remove all, also what int8 has learnt"
    parser.add_argument("action", choices=("info", "list", "verify", "clear"), help=what)
    add_cache_dir(parser)
    parser.add_argument("--yes", action="store_true", help="clear without asking")


def run(options: argparse.Namespace) -> int:
    """Show, check or remove the graphs; 1 where ``verify`` finds a damaged graph or a folder that is not used."""
    store = open_store(Settings(cache_dir=cache_dir(options)))
    if options.cache_dir is not None and not store.folder.is_dir():
        raise SettingsError(f"--cache-dir is {options.cache_dir!r}, which is no folder; give the folder of the stored graphs.")
    if options.action == "clear" and (problem := folder_problem(store.folder)):
        raise SettingsError(f"The graphs in {store.folder} are not removed: {problem}.")
    if options.action == "clear" and not options.yes:
        _confirm(store, options.json)
    actions = {"info": _info, "list": _list, "verify": _verify, "clear": _clear}
    return actions[options.action](store, options.json)


def _confirm(store: GraphStore, as_json: bool) -> None:
    """Ask whether the graphs are to be removed, if there are any and somebody can be asked."""
    count = len(store.entries()) + len(recipe_store(store.folder).entries())
    what = f"{counted(len(store.entries()), 'graph')}, {size_text(store.bytes)}, in {store.folder}"
    if count and (as_json or not sys.stdin or not sys.stdin.isatty()):
        raise SettingsError(f"clear would remove {what}; give --yes to have that done.")
    if count:
        print(f"Remove {what}? The next pictures need them made again. [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise SettingsError("Nothing is removed; answer y, or give --yes, to have it removed.")


def _info(store: GraphStore, as_json: bool) -> int:
    facts = _facts(store)
    if as_json:
        print_json(facts)
    else:
        amount = f"{size_text(store.bytes)} of at most {size_text(store.max_bytes)}"
        print(f"{counted(facts['graphs'], 'graph')}, {amount}, in {store.folder}")
    return 0


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


def _verify(store: GraphStore, as_json: bool) -> int:
    facts, (damaged, old) = _facts(store), store.check()
    problem, whole = facts.get("problem"), facts["graphs"] - len(damaged) - len(old)
    if as_json:
        print_json({**facts, "whole": whole, "damaged": damaged, "old": old})
        return 1 if damaged or problem else 0
    found = f"{whole} whole, {len(damaged)} damaged, {len(old)} of another version"
    print(f"Read every byte of {counted(facts['graphs'], 'graph')}, {size_text(store.bytes)}, in {store.folder}: {found}.")
    _print_damaged(store, damaged)
    for key in old:
        print(f"{key} is an old entry of another version; it is not used, and goes when the space is needed")
    return 1 if damaged or problem else 0


def _clear(store: GraphStore, as_json: bool) -> int:
    removed, recipes, runs = store.clear(), recipe_store(store.folder).clear(), run_store(store.folder).clear()
    if as_json:
        print_json({"folder": str(store.folder), "removed": removed, "recipes": recipes, "runs": runs})
    else:
        also = [f"{counted(recipes, 'recipe')} of int8"] * bool(recipes) + ["the notes of earlier runs"] * bool(runs)
        print(f"{counted(removed, 'graph')} removed from {store.folder}.")
        if also:
            print(f"So are {' and '.join(also)}.")
    left = len(store.entries())
    if left:
        raise SettingsError(f"{counted(left, 'graph')} in {store.folder} cannot be removed; check their owner and the folder's.")
    return 0


def _facts(store: GraphStore) -> dict[str, Any]:
    problem = store.problem()  # it warns on stderr
    facts = {"folder": str(store.folder), "graphs": len(store.entries()), "bytes": store.bytes, "bound": store.max_bytes}
    return {**facts, "problem": problem} if problem else facts


def _print_damaged(store: GraphStore, damaged: dict[str, str]) -> None:
    for key, reason in damaged.items():
        file = store.folder / f"{key}{store.kind.suffix}"
        advice = f"The next call does not use it, and captures its network again. You can remove {file}."
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
