"""A second extension for the end-to-end tests.

It reports from inside the WebUI whether anything is left behind, and misbehaves on request as other extensions do. The
suite links it into the extensions of a WebUI that the suite starts itself.
"""

import base64
import contextlib
import gc
import inspect
import os
import sys
import tempfile
from pathlib import Path

import probe_files
import probe_state
import psutil
import torch
from modules import call_queue, img2img, processing, script_callbacks, scripts, shared
from modules import sd_hijack_optimizations as optimizations

CLASSES = (
    ("ldm.modules.diffusionmodules.openaimodel", "UNetModel", "forward"),
    ("sgm.modules.diffusionmodules.openaimodel", "UNetModel", "forward"),
    ("ldm.modules.diffusionmodules.model", "Encoder", "forward"),
    ("ldm.modules.diffusionmodules.model", "Decoder", "forward"),
    ("ldm.modules.diffusionmodules.model", "AttnBlock", "forward"),
    ("sgm.modules.diffusionmodules.model", "Encoder", "forward"),
    ("sgm.modules.diffusionmodules.model", "Decoder", "forward"),
    ("sgm.modules.diffusionmodules.model", "AttnBlock", "forward"),
    ("ldm.modules.attention", "CrossAttention", "forward"),
    ("sgm.modules.attention", "CrossAttention", "forward"),
    ("modules.models.sd3.mmdit", "MMDiT", "forward"),
    ("modules.models.sd3.sd3_impls", "VAEEncoder", "forward"),
    ("modules.models.sd3.sd3_impls", "VAEDecoder", "forward"),
    ("modules.models.sd3.other_impls", "CLIPEncoder", "forward"),
    ("modules.models.sd3.other_impls", "T5Stack", "forward"),
    ("transformers.models.clip.modeling_clip", "CLIPEncoder", "forward"),
    ("ldm_patched.ldm.modules.diffusionmodules.openaimodel", "UNetModel", "_forward"),
    ("ldm_patched.ldm.modules.diffusionmodules.model", "Encoder", "forward"),
    ("ldm_patched.ldm.modules.diffusionmodules.model", "Decoder", "forward"),
    ("ldm_patched.modules.clip_model", "CLIPEncoder", "forward"),
    ("backend.nn.unet", "IntegratedUNet2DConditionModel", "forward"),
    ("backend.nn.vae", "Encoder", "forward"),
    ("backend.nn.vae", "Decoder", "forward"),
    ("ldm.modules.encoders.modules", "FrozenOpenCLIPEmbedder", "text_transformer_forward"),
    ("sgm.modules.encoders.modules", "FrozenOpenCLIPEmbedder", "text_transformer_forward"),
    ("sgm.modules.encoders.modules", "FrozenOpenCLIPEmbedder2", "text_transformer_forward"),
)
#: The WebUI itself replaces one of these with the other whenever it loads a checkpoint; its descendants do not have them.
UNOPTIMIZED = tuple(
    getattr(optimizations, f"{package}diffusionmodules_model_AttnBlock_forward", None) for package in ("", "sgm_")
)
#: The functions at the WebUI's start, in a module that reloading the page does not reload.
ORIGINALS = vars(shared).setdefault("openvino_probe_originals", {})


def functions():
    """Every function that the extension under test may replace, by name."""
    present = [each for each in CLASSES if each[0] in sys.modules]
    by_name = {f"{module}.{name}": vars(getattr(sys.modules[module], name))[function] for module, name, function in present}
    by_name["torch.nn.Module.__call__"] = torch.nn.Module.__call__
    by_name["processing.process_images"] = processing.process_images
    by_name["processing.process_images_inner"] = processing.process_images_inner
    return by_name


def below_our_patches(function):
    """The function that a patch of the extension under test stands in for; any other one as it is."""
    return inspect.unwrap(function) if hasattr(function, "_ov_backend_patched") else function


def of_another_extension(function):
    """Whether a function stands in the folder of another extension, which puts it there anew when the page is reloaded."""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return f"{os.sep}extensions{os.sep}" in file and "openvino" not in file


def instances():
    """Modules of the model in use that have a forward on the instance."""
    roots = probe_files.roots_in_use().items()
    return [f"{n}.{path}" for n, root in roots for path, m in root.named_modules() if "forward" in vars(m)]


def extension():
    """The name of the folder of the extension under test, or None while it is disabled."""
    files = (Path(data.path) for data in scripts.scripts_data)
    return next((file.parents[1].name for file in files if file.name == "openvino_accelerate.py"), None)


def host():
    """What the extension under test calls the WebUI, or None while it is disabled."""
    known = sys.modules.get("ov_backend.hosts.webui.detect")
    return known.host.name if known is not None else None


def of_folder(body):
    """As img2img's tab "Batch": every picture of a folder in turn, by one processing object."""
    runner = scripts.scripts_img2img
    arguments = [0, *(None if component is None else component.value for component in runner.inputs[1:])]
    for number, script in enumerate(runner.selectable_scripts, start=1):
        if body["script_args"] and script.title().lower() == body["script_name"].lower():
            arguments[script.args_from : script.args_to] = body["script_args"]
            arguments[0] = number
    with call_queue.queue_lock, tempfile.TemporaryDirectory() as folder:
        for number, image in enumerate(body["init_images"]):
            (Path(folder) / f"{number}.png").write_bytes(base64.b64decode(image))
        p = processing.StableDiffusionProcessingImg2Img(sd_model=shared.sd_model, outpath_samples=folder, **body["fields"])
        p.scripts, p.script_args = runner, tuple(arguments)
        for name in ("seed", "steps", "sampler_name"):  # the page's controls set these
            setattr(p, name, body["fields"][name])
        p.do_not_save_samples = p.do_not_save_grid = True
        shared.state.begin(job="batch")
        try:
            return img2img.process_batch(p, folder, "", "", arguments)
        finally:
            p.close()
            shared.state.end()


def routes(_, app):
    """Add the probe's routes."""
    with contextlib.suppress(Exception):  # SD3 came with v1.10, and its descendants have another; its classes are there before
        import modules.models.sd3.sd3_model  # noqa: F401
    if not ORIGINALS and shared.sd_model is not None:  # reading sd_model loads the first checkpoint, which replaces functions
        # the extension may trace a network just now, for what was made last before
        ORIGINALS.update({name: below_our_patches(function) for name, function in functions().items()})

    @app.get("/probe/state")
    def state():
        gc.collect()
        current = functions()
        changed = [name for name in current if current[name] is not ORIGINALS[name]]
        return {
            "replaced": sorted(n for n in changed if current[n] not in UNOPTIMIZED and not of_another_extension(current[n])),
            "instances": instances(),
            "rss": psutil.Process(os.getpid()).memory_info().rss,
            "extension": extension(),
            "host": host(),
        }

    @app.get("/probe/settings")
    def settings():
        """All settings: the WebUI's API leaves those out that were added after an extension has imported it."""
        values = {name: shared.opts.data.get(name, info.default) for name, info in shared.opts.data_labels.items()}
        return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str, list, type(None)))}

    @app.post("/probe/stop")
    def stop():
        shared.state.stop_generating()
        return {}

    @app.post("/probe/batch")
    def batch(body: dict):
        from modules.api import api  # here, because at its import it reads which settings exist

        processed = of_folder(body)
        images = [api.encode_pil_to_base64(image) for image in processed.images]
        return {"images": images, "infotexts": processed.infotexts}

    @app.post("/probe/reload-ui")
    def reload_ui():
        shared.state.request_restart()
        return {}

    @app.post("/probe/clean")
    def clean():
        vars(probe_files.unet_in_use()).pop("forward", None)
        return {}

    @app.post("/probe/forget-recipes")
    def forget_recipes():
        from ov_backend.hosts.webui.session import session

        recipes = session.engine.resources.recipes if session.engine is not None else None
        if recipes is not None and recipes.store is not None:
            recipes.store.clear()
            recipes.clear()
        return {}

    @app.post("/probe/t5")
    def t5(_body: dict):
        return answers_of_t5()

    @app.post("/probe/controlnet")
    def controlnet(body: dict):
        write = probe_files.write_adapter if body.get("adapter") else probe_files.write_controlnet
        write(Path(body["file"]), body.get("seed", 5))
        return {}

    @app.post("/probe/lora")
    def lora(body: dict):
        probe_files.write_lora(Path(body["file"]), body.get("kind", "lora"), body.get("seed", 5))
        return {}

    @app.get("/probe/everything")
    def everything():
        gc.collect()
        return probe_state.everything()


script_callbacks.on_app_started(routes)


def answers_of_t5():
    """Two calls of a small encoder of SD3's T5 class, by PyTorch and by OpenVINO."""
    from modules.models.sd3 import other_impls

    import ov_backend

    torch.manual_seed(3)
    stack = other_impls.T5Stack(2, 32, 32, 64, 4, 99, torch.float32, "cpu").eval()
    for weight in stack.parameters():
        weight.data = torch.randn(weight.shape) / (weight.shape[-1] ** 0.5 if weight.dim() > 1 else 1)
    inputs = [torch.randint(0, 99, (2, 77)) for _ in range(2)]
    with torch.no_grad():
        expected = [stack(tokens, intermediate_output=-1)[0] for tokens in inputs]
        settings = ov_backend.Settings(precision="f32", fallback="raise", model_caching=False)
        with ov_backend.accelerate({"text_encoder": stack}, settings) as accelerated:
            actual = [stack(tokens, intermediate_output=-1)[0] for tokens in inputs]
            calls = accelerated.stats()["text_encoder"]["calls"]
    error = max(float((a - b).norm() / b.norm()) for a, b in zip(actual, expected))
    return {"calls": calls, "error": error}


def fail_at_the_second_step(wrapper):
    """Raise from within a network: the WebUI swallows what callbacks and scripts raise."""
    calls = []

    def count(*_):
        calls.append(1)
        if len(calls) == 2:
            handle.remove()
            raise RuntimeError("the probe was asked to fail")

    handle = wrapper.register_forward_pre_hook(count)


class Probe(scripts.Script):
    """Misbehaves: "instance forward" answers the UNet's calls itself, "raise" fails at the second step."""

    def title(self):
        """The name for the API."""
        return "OpenVINO probe"

    def show(self, is_img2img):
        """Always on."""
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        """One text, the mode."""
        import gradio as gr

        return [gr.Textbox(label="mode", value="", visible=False)]

    def process(self, p, mode, *args):
        """Put a forward on the instance, as ControlNet does."""
        if mode == "raise":
            fail_at_the_second_step(shared.sd_model.model)
        if mode == "instance forward":
            unet = probe_files.unet_in_use()
            unet._probe_original = unet.forward

            def forward(x, timesteps=None, context=None, **kwargs):
                return 0.9 * unet._probe_original(x, timesteps, context, **kwargs)

            unet.forward = forward

    def postprocess(self, p, processed, mode, *args):
        """Restore it as ControlNet does: the class's function stays behind on the instance."""
        if mode == "instance forward":
            unet = probe_files.unet_in_use()
            unet.forward = unet._probe_original
