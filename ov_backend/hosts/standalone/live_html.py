"""The live view, shown in the picture's place while it is made: a preview."""

from __future__ import annotations

import base64
import html

from PIL import Image

from ov_backend.ui.infotext import png


def live_html(text: str = "", picture: Image.Image | None = None) -> str:
    """The live view.

    Args:
        text: shown while there is no preview; what happens now stands in the status line.
        picture: a preview, small; the page scales it.
    """
    inside = f"<p>{html.escape(text)}</p>"
    if picture is not None:
        inside = f'<img alt="Preview" src="data:image/png;base64,{base64.b64encode(png(picture)).decode()}">'
    return f'<div class="openvino-live">{inside}</div>'
