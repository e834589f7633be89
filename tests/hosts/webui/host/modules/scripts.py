"""Scripts: loaded outside of ``sys.modules``, with the extension's root on ``sys.path`` only while they load."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import gradio as gr

from modules import script_callbacks

AlwaysVisible = object()
ScriptClassData = namedtuple("ScriptClassData", ["script_class", "path", "basedir", "module"])
scripts_data: list[Any] = []


class Script:
    args_from: int | None = None
    args_to: int | None = None
    infotext_fields: Any = None
    create_group = True
    is_img2img = False

    def title(self) -> str:
        raise NotImplementedError

    def ui(self, is_img2img: bool) -> Any:
        return None

    def show(self, is_img2img: bool) -> Any:
        return True


HOOKS = ("before_process", "process", "process_batch", "process_before_every_sampling", "postprocess")
for _hook in HOOKS:
    setattr(Script, _hook, lambda self, p, *args, **kwargs: None)


def load_scripts(folders: list[Path]) -> None:
    """Load every file of the extensions' folders ``scripts``."""
    scripts_data.clear()
    script_callbacks.callbacks.clear()
    for root in folders:
        for path in sorted((root / "scripts").glob("*.py")):
            before = sys.path
            sys.path = [str(root), *sys.path]
            try:
                spec = importlib.util.spec_from_file_location(path.name, path)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            finally:
                sys.path = before
            for value in vars(module).values():
                if inspect.isclass(value) and issubclass(value, Script):
                    scripts_data.append(ScriptClassData(value, str(path), str(root), module))


class ScriptRunner:
    """The scripts of one tab."""

    def __init__(self, is_img2img: bool) -> None:
        self.scripts = [data.script_class() for data in scripts_data]
        self.inputs: list[Any] = [None]
        shown = [(script, script.show(is_img2img)) for script in self.scripts]
        self.alwayson_scripts = [script for script, visible in shown if visible is AlwaysVisible]
        self.selectable_scripts = [script for script, visible in shown if visible and visible is not AlwaysVisible]
        with gr.Blocks():
            for script in [*self.alwayson_scripts, *self.selectable_scripts]:
                script.is_img2img = is_img2img
                script.args_from = script.args_to = len(self.inputs)
                controls = script.ui(is_img2img)
                if controls is not None:
                    self.inputs += controls
                    script.args_to = len(self.inputs)

    @property
    def titles(self) -> list[str]:
        return [script.title() for script in self.selectable_scripts]

    def api_arguments(self, script: Script | None, args: list[Any] | None) -> list[Any]:
        """All scripts' arguments, as the API builds them: defaults, with the slice of ``script`` replaced by ``args``."""
        values = [0] + [getattr(component, "value", None) for component in self.inputs[1:]]
        if script is not None:
            if args is not None:
                values[script.args_from : script.args_to] = args
            values[0] = self.selectable_scripts.index(script) + 1
        return values

    def run(self, p: Any, *args: Any) -> Any:
        if not args[0]:
            return None
        script = self.selectable_scripts[args[0] - 1]
        return script.run(p, *args[script.args_from : script.args_to])

    def hook(self, name: str, p: Any, *more: Any, **kwargs: Any) -> None:
        for script in self.alwayson_scripts:
            getattr(script, name)(p, *more, *p.script_args[script.args_from : script.args_to], **kwargs)


scripts_txt2img: Any = None
scripts_img2img: Any = None


def initialize(folders: list[Path]) -> None:
    """What starting (or reloading) the WebUI does with scripts."""
    global scripts_txt2img, scripts_img2img
    script_callbacks.call("script_unloaded")
    load_scripts(folders)
    script_callbacks.call("before_ui")
    script_callbacks.call("ui_settings")
    scripts_txt2img, scripts_img2img = ScriptRunner(False), ScriptRunner(True)
