"""The live view, shown in the picture's place while it is made: a preview, what happens now, and how much is done."""

from __future__ import annotations

import base64
import html
import io

from PIL import Image


def live_html(text: str, share: float | None = None, picture: Image.Image | None = None) -> str:
    """The live view.

    Args:
        text: what happens now.
        share: how much is done, 0 to 1; None where nobody can tell.
        picture: a preview, small; the page scales it.
    """
    value = "" if share is None else f' value="{share:.3f}"'
    preview = f'<img alt="Preview" src="{_data_url(picture)}">' if picture is not None else ""
    return (
        f'<div class="openvino-live"><div class="openvino-live-picture">{preview}</div>'
        f'<progress max="1"{value} aria-label="Progress of the picture"></progress><p>{html.escape(text)}</p></div>'
    )


def _data_url(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
