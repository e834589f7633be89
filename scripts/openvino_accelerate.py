"""The extension's script, "Accelerate with OpenVINO" in the dropdown, and its companion that is always on.

The WebUI calls these classes; the package ov_backend does the work.
"""

import html
import logging

import gradio as gr
from modules import processing, scripts

log = logging.getLogger("ov_backend")

TITLE = "Accelerate with OpenVINO"
PROBLEM = ""
try:
    from ov_backend.hosts.webui import callbacks
    from ov_backend.ui.panel import build_panel, paste_fields

    callbacks.register()
except Exception as error:  # whatever is broken, the script stays in the list and reports it
    log.exception("The OpenVINO extension could not be loaded")
    is_told = "pip install" in str(error) or "Install the extension" in str(error)
    COMMAND = "" if is_told else " Install it into the WebUI's environment with: pip install openvino."
    PROBLEM = (
        f"OpenVINO cannot be used: {error}.{COMMAND} Then restart the WebUI. Until then pictures are made by PyTorch as always."
    )


class Script(scripts.Script):
    """The script in the dropdown: the WebUI's own pipeline generates, with its networks in OpenVINO."""

    def title(self):
        """The name in the dropdown."""
        return TITLE

    def show(self, is_img2img):
        """Shown in txt2img and img2img."""
        return True

    def ui(self, is_img2img):
        """Build the panel."""
        if PROBLEM:
            gr.HTML(f"<p class='openvino-note'>{html.escape(PROBLEM)}</p>")
            return []
        components = build_panel("img2img" if is_img2img else "txt2img", callbacks.defaults())
        self.infotext_fields = paste_fields(components, callbacks.report)
        return components

    def run(self, p, *args):
        """Generate; where OpenVINO cannot be used, in PyTorch and with a message."""
        if PROBLEM:
            log.warning(PROBLEM)
            processed = processing.process_images(p)
            processed.comments += PROBLEM + "\n"
            return processed
        return callbacks.run(self, p, args)


class Companion(scripts.Script):
    """Runs in every generation, without controls; accelerates it if the settings ask for that."""

    create_group = False

    def title(self):
        """Its name in lists of scripts."""
        return f"{TITLE} (every generation)"

    def show(self, is_img2img):
        """Runs without being selected."""
        return scripts.AlwaysVisible

    def before_process(self, p, *args):
        """A generation begins; the first call in it."""
        if not PROBLEM:
            callbacks.before_process(p)

    def process_batch(self, p, *args, **kwargs):
        """A batch begins; its LoRAs are set, and nothing is encoded yet."""
        if not PROBLEM:
            callbacks.before_batch()

    def process_before_every_sampling(self, p, *args, **kwargs):
        """Sampling begins; all extensions have patched what they need."""
        if not PROBLEM:
            callbacks.before_sampling()
