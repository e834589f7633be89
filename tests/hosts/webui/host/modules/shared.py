"""Options, state, and the model in use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

loaded_hypernetworks: list[Any] = []
cmd_opts = SimpleNamespace(no_half=True, no_prompt_history=False)


class OptionInfo:
    def __init__(
        self, default: Any = None, label: str = "", component: Any = None, component_args: Any = None, onchange: Any = None
    ) -> None:
        self.default, self.label, self.component, self.component_args = default, label, component, component_args
        self.onchange = onchange
        self.section: tuple[str, str] | None = None

    def info(self, text: str) -> OptionInfo:
        return self


def options_section(section: tuple[str, str], options: dict[str, OptionInfo]) -> dict[str, OptionInfo]:
    for option in options.values():
        option.section = section
    return options


options_builtin_fields = {"data_labels", "data", "restricted_opts", "typemap"}


class Options:
    """Settings as attributes, which lie in ``data``, and a set of the names that do not, as in the WebUI."""

    def __init__(self) -> None:
        self.data_labels: dict[str, OptionInfo] = {}
        self.data = dict(DEFAULTS)
        self.restricted_opts: set[str] = {"outdir_samples", "outdir_grids", "outdir_save"}

    def __setattr__(self, key: str, value: Any) -> None:
        if key in options_builtin_fields or not (key in self.data or key in self.data_labels):
            super().__setattr__(key, value)
        else:
            self.data[key] = value

    def __getattr__(self, item: str) -> Any:
        if item in options_builtin_fields:
            return super().__getattribute__(item)
        if item in self.data:
            return self.data[item]
        if item in self.data_labels:
            return self.data_labels[item].default
        return super().__getattribute__(item)

    def add_option(self, name: str, option: OptionInfo) -> None:
        self.data_labels[name] = option
        self.data.setdefault(name, option.default)


DEFAULTS: dict[str, Any] = {
    "sd_model_checkpoint": "a",
    "CLIP_stop_at_last_layers": 1,
    "upcast_attn": False,
    "lora_functional": False,
    "lyco_functional": False,
    "persistent_cond_cache": True,
    "s_min_uncond": 0.0,
    "skip_early_cond": 0.0,
    "batch_cond_uncond": True,
    "sd_vae_decode_method": "Full",
    "hires_fix_refiner_pass": "second pass",
}
opts = Options()


class State:
    """The running job, and whether the user has interrupted it."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, job: str = "") -> None:
        self.job = job
        self.interrupted = self.skipped = self.stopping_generation = False
        self.sampling_step = self.sampling_steps = 0
        self.textinfo: str | None = None

    def interrupt(self) -> None:
        self.interrupted = True

    def end(self) -> None:
        self.job = ""


state = State()


def __getattr__(name: str) -> Any:
    if name == "sd_model":
        from modules import sd_models

        return sd_models.model_data.sd_model
    raise AttributeError(name)
