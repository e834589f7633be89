"""The live view, shown in the picture's place while it is made: a preview."""

from __future__ import annotations

import base64
import html
import io

from PIL import Image


def live_html(text: str = "", picture: Image.Image | None = None) -> str:
    """The live view.

    Args:
        text: shown while there is no preview; what happens now stands in the status line.
        picture: a preview, small; the page scales it.
    """
    inside = f'<img alt="Preview" src="{_data_url(picture)}">' if picture is not None else f"<p>{html.escape(text)}</p>"
    return f'<div class="openvino-live">{inside}</div>'


def _data_url(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
