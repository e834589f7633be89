"""Those parts of the panel that are HTML: javascript/openvino_view.js fills the elements and handles the buttons.

Each part stands where the panel puts it: preparing near the top, the live status below it, details in the accordion "More".
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from ov_backend.ui.access import page_token

#: Headings of the table of compiled networks; javascript/openvino_text.js has the cells, in the same order.
COLUMNS = ("Network", "Size", "Batch", "Device", "Precision", "Memory", "Compiled in", "Calls", "Reused")

#: Text and explanation of each action's button.
ACTIONS = {
    "precompile": ("Prepare", "Compiles the networks for these sizes before they are needed"),
    "compare": ("Compare with PyTorch", "Makes the last picture once more by PyTorch and by OpenVINO, and times both"),
    "compare-int8": ("Compare int8", "Makes a picture of another seed in the device's own precision and in int8"),
    "job": ("Save these settings as a job file", "Downloads job.jsonl for the command batch, which makes thousands of pictures"),
    "clear": ("Clear the cache", "Asks, then removes the prepared graphs on disk"),
    "interrupt": ("Interrupt", "Ends what is running"),
}


def prepare_html(tab: str, sizes: Sequence[str]) -> str:
    """The sizes to prepare, and the buttons beside them; ``sizes`` are those proposed, such as "512x768"."""
    name = _name(tab)
    value = html.escape(", ".join(sizes))
    return f"""
<div class="openvino-actions" id="{name}_actions" role="group" aria-label="Prepare and compare">
  <label class="openvino-sizes">Sizes to prepare
    <span class="openvino-hint">Width x height, separated by commas</span>
    <input type="text" id="{name}_sizes" data-openvino="sizes" value="{value}"></label>
  <label>Batch size
    <span class="openvino-hint">Pictures at once</span>
    <input type="number" id="{name}_batch" data-openvino="batch" value="1" min="1" max="16" step="1"></label>
  {_button(name, "precompile")}
  {_button(name, "compare")}
  {_button(name, "compare-int8", hidden=True)}
</div>"""


def shares_html(tab: str) -> str:
    """How the last generation's seconds divide."""
    return f'<div class="openvino-shares" id="{_name(tab)}_shares" data-openvino="shares" hidden></div>'


def status_html(tab: str, fields: Sequence[str], in_panel: bool = True) -> str:
    """The live status of one tab.

    Args:
        tab: "txt2img" or "img2img"; every id is ``openvino_{tab}_...``.
        fields: the panel's fields, whose controls are sent with a job.
        in_panel: whether shares and both pictures of a comparison are here too; the standalone page has them in other places.
    """
    name = _name(tab)
    pictures = '<div class="openvino-comparison" data-openvino="comparison" hidden></div>'
    return f"""
<section class="openvino-view" id="{name}_view" aria-label="OpenVINO: live status"
    data-openvino-token="{html.escape(page_token())}" data-openvino-fields="{html.escape(json.dumps(list(fields)))}">
  <div class="openvino-now">
    <p class="openvino-headline" id="{name}_headline" data-openvino="headline" aria-hidden="true">Nothing is running</p>
    {_button(name, "interrupt", hidden=True)}
  </div>
  <p class="openvino-spoken" role="status" data-openvino="spoken"></p>
  <progress class="openvino-progress" id="{name}_progress" data-openvino="progress" max="1" aria-label="Progress" hidden>
  </progress>
  <p class="openvino-timing" id="{name}_timing" data-openvino="timing"></p>
  <p class="openvino-result" id="{name}_result" role="status" data-openvino="result"></p>
  {pictures + shares_html(tab) if in_panel else ""}
  <ul class="openvino-fallbacks" id="{name}_fallbacks" data-openvino="fallbacks" hidden></ul>
  <p class="openvino-alert" id="{name}_alert" role="alert" data-openvino="alert"></p>
  <p class="openvino-notice" id="{name}_notice" role="status" data-openvino="notice"></p>
</section>"""


def details_html(tab: str) -> str:
    """The graphs on disk, what stays in PyTorch, and the table of compiled networks."""
    name = _name(tab)
    headings = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in COLUMNS)
    return f"""
<div class="openvino-details">
  <h2 class="openvino-heading">Prepared networks</h2>
  <div class="openvino-actions">
    <p class="openvino-cache" id="{name}_cache" data-openvino="cache"></p>
    {_button(name, "clear")}
    {_button(name, "job")}
  </div>
  <ul class="openvino-coverage" id="{name}_coverage" data-openvino="coverage" hidden></ul>
  <details class="openvino-networks" id="{name}_networks" data-openvino="networks" hidden>
    <summary data-openvino="networks-summary">Compiled networks</summary>
    <div class="openvino-scroll" role="region" aria-label="Compiled networks" tabindex="0">
      <table><thead><tr>{headings}</tr></thead><tbody data-openvino="rows"></tbody></table>
    </div>
  </details>
</div>"""


def _name(tab: str) -> str:
    return f"openvino_{html.escape(tab)}"


def _button(name: str, action: str, hidden: bool = False) -> str:
    text, tip = ACTIONS[action]
    return (
        f'<button type="button" id="{name}_{action}" data-openvino-action="{action}" title="{html.escape(tip)}"'
        f"{' hidden' if hidden else ''}>{html.escape(text)}</button>"
    )
