"""A second extension for the end-to-end tests: it looks from inside whether anything is left behind, and misbehaves on
request as other extensions do. Linked into a WebUI's extensions by the suite only when the suite starts that WebUI."""

import base64
import gc
import os
import sys
import tempfile
from pathlib import Path

import psutil
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
    ("transformers.models.clip.modeling_clip", "CLIPEncoder", "forward"),
    ("ldm.modules.encoders.modules", "FrozenOpenCLIPEmbedder", "text_transformer_forward"),
    ("sgm.modules.encoders.modules", "FrozenOpenCLIPEmbedder", "text_transformer_forward"),
    ("sgm.modules.encoders.modules", "FrozenOpenCLIPEmbedder2", "text_transformer_forward"),
)
#: The WebUI itself puts the one in the other's place whenever it loads a checkpoint.
PLAIN = (
    optimizations.diffusionmodules_model_AttnBlock_forward,
    optimizations.sgm_diffusionmodules_model_AttnBlock_forward,
)
#: Kept where reloading the page does not reach: what was there at the very beginning.
ORIGINALS = vars(shared).setdefault("openvino_probe_originals", {})


def functions():
    """Every function that the extension under test may replace, by name."""
    found = {f"{module}.{name}": vars(getattr(sys.modules[module], name))[function] for module, name, function in CLASSES}
    found["processing.process_images"] = processing.process_images
    found["processing.process_images_inner"] = processing.process_images_inner
    return found


def instances():
    """Networks of the model in use that have a forward of their own."""
    model = shared.sd_model
    roots = {"unet": model.model.diffusion_model, "vae": model.first_stage_model, "text": model.cond_stage_model}
    return [f"{n}.{path}" for n, root in roots.items() for path, m in root.named_modules() if "forward" in vars(m)]


def extension():
    """The folder of the extension under test, by which it can be disabled; None while it is."""
    files = (Path(data.path) for data in scripts.scripts_data)
    return next((file.parents[1].name for file in files if file.name == "openvino_accelerate.py"), None)


def of_folder(body):
    """What img2img's tab "Batch" does: every picture of a folder, one after the other, by one processing object."""
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
        for name in ("seed", "steps", "sampler_name"):  # these came from the page's controls just now
            setattr(p, name, body["fields"][name])
        p.do_not_save_samples = p.do_not_save_grid = True
        shared.state.begin(job="batch")
        try:
            return img2img.process_batch(p, folder, "", "", arguments)
        finally:
            p.close()
            shared.state.end()


def routes(_, app):
    """Answer what is left behind, and how much memory is in use."""
    if not ORIGINALS and shared.sd_model is not None:  # by asking for the model: loading the first one replaces functions
        ORIGINALS.update(functions())

    @app.get("/probe/state")
    def state():
        gc.collect()
        now = functions()
        return {
            "replaced": sorted(name for name in now if now[name] is not ORIGINALS[name] and now[name] not in PLAIN),
            "instances": instances(),
            "rss": psutil.Process(os.getpid()).memory_info().rss,
            "extension": extension(),
        }

    @app.post("/probe/stop")
    def stop():
        shared.state.stop_generating()
        return {}

    @app.post("/probe/batch")
    def batch(body: dict):
        from modules.api import api  # not before the page is made: it notes which settings there are

        done = of_folder(body)
        return {"images": [api.encode_pil_to_base64(image) for image in done.images], "infotexts": done.infotexts}

    @app.post("/probe/reload-ui")
    def reload_ui():
        shared.state.request_restart()
        return {}

    @app.post("/probe/clean")
    def clean():
        vars(shared.sd_model.model.diffusion_model).pop("forward", None)
        return {}


script_callbacks.on_app_started(routes)


def fail_at_the_second_step(wrapper):
    """Raise from within sampling: what callbacks and scripts raise, the WebUI swallows."""
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
        """Its name for the API."""
        return "OpenVINO probe"

    def show(self, is_img2img):
        """Always on."""
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        """One text: what to do."""
        import gradio as gr

        return [gr.Textbox(label="mode", value="", visible=False)]

    def process(self, p, mode, *args):
        """Put the forward in place, as ControlNet does."""
        if mode == "raise":
            fail_at_the_second_step(shared.sd_model.model)
        if mode == "instance forward":
            unet = shared.sd_model.model.diffusion_model
            unet._probe_original = unet.forward

            def forward(x, timesteps=None, context=None, **kwargs):
                return 0.9 * unet._probe_original(x, timesteps, context, **kwargs)

            unet.forward = forward

    def postprocess(self, p, processed, mode, *args):
        """Restore it as ControlNet does: the class's function stays behind on the instance."""
        if mode == "instance forward":
            unet = shared.sd_model.model.diffusion_model
            unet.forward = unet._probe_original
