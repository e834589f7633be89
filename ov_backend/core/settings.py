"""All settings of the backend, in one frozen dataclass.

Every field declares what it affects. The key of a stored graph and the key of a compiled graph are built from that:

- ``graph``: the captured graph (another value needs another graph),
- ``compile``: the compiled graph only (another value needs another compile of the same graph),
- ``run``: neither.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

from ov_backend.core.errors import SettingsError, short_repr

PRECISIONS = ("auto", "f32", "bf16", "f16", "int8")
CONVERTERS = ("fx", "ts")
BLOB_CACHES = ("auto", "on", "off")
LOW_MEMORY = ("auto", "on", "off")
FALLBACKS = ("pytorch", "inductor", "raise")

ENV_DEVICE = "OPENVINO_TORCH_BACKEND_DEVICE"
ENV_CACHING = "OPENVINO_TORCH_MODEL_CACHING"
ENV_CACHE_DIR = "OPENVINO_TORCH_CACHE_DIR"

_NO_ANALYTICS = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
_OPERATOR = re.compile(r"\S+")
#: The names that torch's dtypes print, so that this module needs no torch.
_DTYPES = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16"}
_LEVELS = range(6)
#: What a spelling of another backend is where it is not given; None is a value that makes no sense.
_NOT_GIVEN: Any = object()
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def _setting(affects: str, **kwargs: Any) -> Any:
    return field(metadata={"affects": affects}, **kwargs)


def parse_bool(value: object, name: str) -> bool:
    """Read a switch that is given as a bool, as 0 or 1, or as a word. Raises SettingsError if the value is none of these."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise SettingsError(f"{name} is {short_repr(value)}; it must be true or false.")


def _parse_dynamic_shapes(value: object) -> bool | str:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return parse_bool(value, "dynamic_shapes")
    except SettingsError as error:
        raise SettingsError(f"dynamic_shapes is {short_repr(value)}; it must be true, false or auto.") from error


def environment(name: str) -> str | None:
    """The value of an environment variable; only this module reads the environment."""
    return os.environ.get(name)


def without_analytics() -> None:
    """Keep Gradio's and huggingface's packages from sending what they are used for; a variable that is set already stays."""
    for name, value in _NO_ANALYTICS.items():
        os.environ.setdefault(name, value)


def without_ray_messages() -> None:
    """Keep Ray, which is not imported yet, from printing what fails in its processes between the lines of a command."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")


def _env_caching() -> bool:
    return parse_bool(os.environ.get(ENV_CACHING, "true"), ENV_CACHING)


@dataclass(frozen=True)
class Settings:
    """How networks are captured, compiled and stored.

    Attributes:
        device: an OpenVINO device: "CPU", "GPU", "GPU.1", "NPU", "AUTO", "AUTO:GPU,CPU", "HETERO:GPU,CPU".
        precision: what the device computes in: "auto" (its default), "f32", "bf16" or "f16"; with "int8" it multiplies 8-bit
            integers in the networks that denoise, after calibrating on the first picture, and all else is as with "auto".
        model_caching: store converted graphs on disk; another process traces such a graph again, but does not convert it.
        cache_dir: folder of the graph store; None selects the user's cache folder.
        disabled_ops: operators that stay in PyTorch, as ``torch.ops.aten.add.Tensor`` or ``"aten.add.Tensor"``.
        config: any OpenVINO property for ``compile_model``, e.g. ``{"PERFORMANCE_HINT": "LATENCY"}``.
        decompositions: operators that are decomposed before conversion, spelled as in ``disabled_ops``.
        converter: "fx" converts the FX graph, and uses TorchScript for operators that this does not cover; "ts" converts
            everything through TorchScript (``openvino_ts``).
        min_block_size: a subgraph of fewer operators than this stays in PyTorch; ``math.inf`` is a dry run.
        truncate_long_and_double: let OpenVINO compute int64 as int32 and float64 as float32.
        wide_integers: int64 inputs may exceed 2 ** 20 (``torch.compile`` detects that by itself); int64 arithmetic then
            stays in PyTorch, because OpenVINO computes it in 32 bits.
        aot_autograd: run forward and backward in OpenVINO, for training (``torch.compile`` only).
        dynamic_shapes: where Dynamo passes symbolic sizes, compile one graph for the whole range: True at once, False never, and
            "auto" from the third size of a function on (``torch.compile`` only).
        debug: log every graph's coverage and partitions (``torch.compile`` only).
        fallback: what cannot be accelerated runs in PyTorch, with a warning ("pytorch"), in inductor where there is a C++
            compiler ("inductor"), or raises ("raise").
        memory_mb: budget in MiB for all compiled graphs in memory; 0 is half of the memory that this process may use.
        cache_mb: bound in MiB of the graph store on disk.
        blob_cache: store compiled graphs with their weights on disk too, so that a new process need not compile: "auto" does
            so where compiling is slow (GPU, NPU), "on" for every device that can export, "off" never.
        blob_mb: bound in MiB of these; a network of Stable Diffusion takes as much as its weights.
        low_memory: give the memory of PyTorch's weights back to the system once they are compiled; they are read from a file
            without a name in ``cache_dir`` when something needs them. "auto" does so where memory is short and
            ``model_caching`` is on, "on" always, "off" never. On Linux, for the CPU.

    Three more names are spellings of similar backends. They are turned into the fields above, and cannot be read afterwards:
    ``torch_executed_ops`` are added to ``disabled_ops``; ``enabled_precisions``, a set of torch's float dtypes, gives the
    narrowest of them as ``precision``; ``optimization_level`` 0 or 1 adds ``EXECUTION_MODE_HINT=ACCURACY`` to ``config``, which
    requests f32 without dynamic quantization, and 2 to 5 are the device's default.

    Raises:
        SettingsError: a value cannot be used. Whether the device exists is checked where the settings are used.
    """

    device: str = _setting("compile", default_factory=lambda: os.environ.get(ENV_DEVICE) or "CPU")
    precision: str = _setting("compile", default="auto")
    model_caching: bool = _setting("run", default_factory=_env_caching)
    cache_dir: str | None = _setting("run", default_factory=lambda: os.environ.get(ENV_CACHE_DIR) or None)
    disabled_ops: tuple[str, ...] = _setting("graph", default=())
    decompositions: tuple[str, ...] = _setting("graph", default=())
    converter: str = _setting("graph", default="fx")
    min_block_size: float = _setting("graph", default=1)
    truncate_long_and_double: bool = _setting("graph", default=False)
    wide_integers: bool = _setting("graph", default=False)
    aot_autograd: bool = _setting("run", default=False)
    dynamic_shapes: bool | str = _setting("run", default="auto")
    debug: bool = _setting("run", default=False)
    config: Mapping[str, Any] = _setting("compile", default_factory=dict)
    fallback: str = _setting("run", default="pytorch")
    memory_mb: int = _setting("run", default=0)
    cache_mb: int = _setting("run", default=1024)
    blob_cache: str = _setting("run", default="auto")
    blob_mb: int = _setting("run", default=8192)
    low_memory: str = _setting("run", default="auto")
    torch_executed_ops: InitVar[Any] = _NOT_GIVEN
    enabled_precisions: InitVar[Any] = _NOT_GIVEN
    optimization_level: InitVar[Any] = _NOT_GIVEN

    def __post_init__(self, torch_executed_ops: Any, enabled_precisions: Any, optimization_level: Any) -> None:
        """Normalise and check every value, so that no other code has to."""
        _set = object.__setattr__
        if enabled_precisions is not _NOT_GIVEN:
            if self.precision != "auto":
                raise SettingsError("Give either precision or enabled_precisions, not both.")
            _set(self, "precision", _narrowest(enabled_precisions))
        if not isinstance(self.device, str) or not self.device.strip():
            raise SettingsError(f"device is {short_repr(self.device)}; it must be an OpenVINO device such as 'CPU' or 'GPU.0'.")
        _set(self, "device", self.device.strip().upper())
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("converter", self.converter, CONVERTERS)
        _check_choice("fallback", self.fallback, FALLBACKS)
        _check_choice("blob_cache", self.blob_cache, BLOB_CACHES)
        _check_choice("low_memory", self.low_memory, LOW_MEMORY)
        for name in ("model_caching", "truncate_long_and_double", "wide_integers", "aot_autograd", "debug"):
            _set(self, name, parse_bool(getattr(self, name), name))
        _set(self, "dynamic_shapes", _parse_dynamic_shapes(self.dynamic_shapes))
        if self.cache_dir is not None:
            if not isinstance(self.cache_dir, (str, os.PathLike)):
                raise SettingsError(f"cache_dir is {short_repr(self.cache_dir)}; it must be the path of a folder.")
            text = os.fspath(self.cache_dir)
            if not isinstance(text, str) or not text.strip() or "\0" in text:
                raise SettingsError(f"cache_dir is {short_repr(self.cache_dir)}; it must be the path of a folder.")
            _set(self, "cache_dir", str(Path(text)))
        disabled = _operators("disabled_ops", self.disabled_ops)
        if torch_executed_ops is not _NOT_GIVEN:
            disabled |= _operators("torch_executed_ops", torch_executed_ops)
        _set(self, "disabled_ops", tuple(sorted(disabled)))
        _set(self, "decompositions", tuple(sorted(_operators("decompositions", self.decompositions))))
        size = self.min_block_size
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not size >= 1:
            raise SettingsError(f"min_block_size is {short_repr(size)}; it must be a number of operators from 1, or math.inf.")
        if not isinstance(self.config, Mapping) or not all(isinstance(name, str) for name in self.config):
            raise SettingsError(f"config is {short_repr(self.config)}; it must be a dict of OpenVINO properties by name.")
        _set(self, "config", {**_accuracy(optimization_level), **self.config})
        for name in ("memory_mb", "cache_mb", "blob_mb"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingsError(f"{name} is {short_repr(value)}; it must be a whole number of MiB, 0 or more.")

    def __hash__(self) -> int:
        """Equal settings have equal hashes, although ``config`` is a dict."""
        return hash((self.device, self.precision, self.disabled_ops, repr(sorted(self.config.items(), key=str))))

    @property
    def cache_folder(self) -> Path:
        """The folder of the graph store."""
        return Path(self.cache_dir) if self.cache_dir else default_cache_dir()

    def affecting(self, what: str) -> dict[str, Any]:
        """The fields that affect ``what`` ("graph", "compile" or "run"), by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata["affects"] == what}

    def text(self, what: str) -> str:
        """The fields that affect ``what`` as text; it is made once, for settings do not change, but for the dict in them."""
        known = self.__dict__.get("_texts")
        if known is None or known[0] != self.config:
            known = dict(self.config), {each: repr(self.affecting(each)) for each in ("graph", "compile", "run")}
            object.__setattr__(self, "_texts", known)
        text: str = known[1][what]
        return text

    def replace(self, **changes: Any) -> Settings:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def in_f32(self) -> Settings:
        """A copy that computes in f32, whatever OpenVINO's own property says."""
        config = {name: value for name, value in self.config.items() if name != "INFERENCE_PRECISION_HINT"}
        return self.replace(precision="f32", config=config)


def default_cache_dir() -> Path:
    """The folder of the graph store where none is given."""
    import platformdirs  # imported here: a WebUI passes the folder, and may not have this package

    return Path(platformdirs.user_cache_dir("ov_backend", appauthor=False)) / "graphs"


def check_names(given: Iterable[Any], known: Collection[str]) -> None:
    """Raise a ``SettingsError`` for the first name that is none of the known ones."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise SettingsError(f"Unknown option {short_repr(name)}.{hint} Known options: {', '.join(known)}.")


def operator_name(op: object) -> str:
    """The canonical spelling of an operator, ``aten.add.Tensor``, from an overload or a string; of a function, its name."""
    text = str(op).removeprefix("torch.ops.")
    return str(getattr(op, "__name__", text)) if text.startswith("<") else text


def _operators(name: str, value: Any) -> set[str]:
    if isinstance(value, str) or not hasattr(value, "__iter__") or hasattr(value, "overloads"):
        raise SettingsError(f"{name} is {short_repr(value)}; it must be a list of operators.")
    if not all(isinstance(op, str) or callable(op) for op in value):  # torch's operators can be called
        raise SettingsError(f"{name} is {short_repr(value)}; it must be a list of operators such as aten.add.Tensor.")
    names = {operator_name(op) for op in value}
    for each in names:
        if not _OPERATOR.fullmatch(each):  # some of torch's operators have a name without a dot
            raise SettingsError(f"{name} holds {short_repr(each)}; it must be a list of operators such as aten.add.Tensor.")
    return names


def _narrowest(enabled: Any) -> str:
    """The narrowest precision of a set of torch's dtypes."""
    kinds = {str(kind) for kind in enabled} if isinstance(enabled, (set, frozenset, list, tuple)) else {str(enabled)}
    if not kinds or kinds - set(_DTYPES):
        expected = "torch.float32, torch.float16 or torch.bfloat16"
        raise SettingsError(f"enabled_precisions is {short_repr(enabled)}; it must hold {expected}.")
    narrow = [_DTYPES[kind] for kind in ("torch.float16", "torch.bfloat16") if kind in kinds]
    if len(narrow) > 1:
        raise SettingsError("enabled_precisions holds torch.float16 and torch.bfloat16; choose one of them.")
    return narrow[0] if narrow else "f32"


def _accuracy(level: Any) -> dict[str, str]:
    """OpenVINO's property for an ``optimization_level``."""
    if level is _NOT_GIVEN:
        return {}
    if isinstance(level, bool) or level not in _LEVELS:
        raise SettingsError(f"optimization_level is {short_repr(level)}; it must be a whole number from 0 to 5.")
    return {"EXECUTION_MODE_HINT": "ACCURACY"} if level <= 1 else {}


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingsError(f"{name} is {short_repr(value)}; it must be one of {', '.join(choices)}.")
