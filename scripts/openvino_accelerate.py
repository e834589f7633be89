"""The extension's one script: "Accelerate with OpenVINO" in the dropdown, and its companion that is always on.

Everything is in the package ov_backend; here is only what the WebUI calls.
"""

import logging

import gradio as gr
from modules import processing, scripts

log = logging.getLogger("ov_backend")

TITLE = "Accelerate with OpenVINO"
PROBLEM = ""
try:
    from ov_backend.ui.panel import build_panel, paste_fields
    from ov_backend.webui import callbacks as host

    host.register()
except Exception as error:  # whatever is broken, the script stays in the list and says so
    log.exception("The OpenVINO extension could not be loaded")
    PROBLEM = (
        f"OpenVINO cannot be used: {error}. Install it into the WebUI's environment with: pip install openvino;"
        " then restart the WebUI. Until then pictures are made by PyTorch as always."
    )


class Script(scripts.Script):
    """The script in the dropdown: generates with the WebUI's own pipeline, its networks in OpenVINO."""

    def title(self):
        """The name in the dropdown."""
        return TITLE

    def show(self, is_img2img):
        """In txt2img and img2img."""
        return True

    def ui(self, is_img2img):
        """The panel."""
        if PROBLEM:
            gr.HTML(f"<p class='openvino-note'>{PROBLEM}</p>")
            return []
        components = build_panel("img2img" if is_img2img else "txt2img", host.defaults())
        self.infotext_fields = paste_fields(components)
        return components

    def run(self, p, *args):
        """Generate; in PyTorch and with a sentence wherever OpenVINO cannot be used."""
        if PROBLEM:
            log.warning(PROBLEM)
            processed = processing.process_images(p)
            processed.comments += PROBLEM + "\n"
            return processed
        return host.run(self, p, args)


class Companion(scripts.Script):
    """Always there, without controls: accelerates every generation where the settings ask for it."""

    create_group = False

    def title(self):
        """Its name in lists of scripts."""
        return f"{TITLE} (every generation)"

    def show(self, is_img2img):
        """Never seen."""
        return scripts.AlwaysVisible

    def before_process(self, p, *args):
        """The first call of a generation."""
        if not PROBLEM:
            host.before_process(p)

    def process_before_every_sampling(self, p, *args, **kwargs):
        """By now all extensions have put in place what they want."""
        if not PROBLEM:
            host.before_sampling()
