"""The live status as HTML: elements that javascript/openvino_view.js fills, and buttons that it handles."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping

from ov_backend.ui.auth import page_token

#: Headings of the table of compiled networks; javascript/openvino_text.js has the cells, in the same order.
COLUMNS = ("Network", "Size", "Batch", "Device", "Precision", "Memory", "Compiled in", "Calls", "Reused")

#: Text and explanation of each action's button.
ACTIONS = {
    "compare": ("Compare with PyTorch", "Times one step by PyTorch and one by OpenVINO on the loaded model"),
    "clear": ("Clear the cache", "Asks, then removes the prepared graphs on disk"),
    "interrupt": ("Stop", "Ends what is running"),
}


def status_html(tab: str, tips: Mapping[str, str]) -> str:
    """The HTML of one tab's live status.

    Args:
        tab: "txt2img" or "img2img"; every id is ``openvino_{tab}_...``.
        tips: tooltips of the panel's controls, by field; Gradio's controls have none.
    """
    name = f"openvino_{html.escape(tab)}"
    headings = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in COLUMNS)
    buttons = "".join(_button(name, action, *texts) for action, texts in ACTIONS.items())
    return f"""
<section class="openvino-view" id="{name}_view" aria-label="OpenVINO: live status"
    data-openvino-token="{html.escape(page_token())}" data-openvino-tips="{html.escape(json.dumps(tips))}">
  <p class="openvino-headline" id="{name}_headline" data-openvino="headline" aria-hidden="true">Nothing is running</p>
  <p class="openvino-spoken" role="status" data-openvino="spoken"></p>
  <progress class="openvino-progress" id="{name}_progress" data-openvino="progress" max="1" aria-label="Progress" hidden>
  </progress>
  <p class="openvino-timing" id="{name}_timing" data-openvino="timing"></p>
  <div class="openvino-shares" id="{name}_shares" data-openvino="shares" hidden></div>
  <ul class="openvino-fallbacks" id="{name}_fallbacks" data-openvino="fallbacks" hidden></ul>
  <p class="openvino-alert" id="{name}_alert" role="alert" data-openvino="alert"></p>
  <p class="openvino-result" id="{name}_result" role="status" data-openvino="result"></p>
  <div class="openvino-actions">
    <label>Sizes to prepare
      <input type="text" id="{name}_sizes" data-openvino="sizes" value="512x512, 512x768, 768x512"
        title="Width x height, separated by commas"></label>
    <label>Pictures at once
      <input type="number" id="{name}_batch" data-openvino="batch" value="1" min="1" max="16" step="1"
        title="How many pictures are generated at once"></label>
    {_button(name, "precompile", "Precompile", "Prepares the networks for these sizes before they are needed")}
    {buttons}
  </div>
  <p class="openvino-cache" id="{name}_cache" data-openvino="cache"></p>
  <ul class="openvino-coverage" id="{name}_coverage" data-openvino="coverage" hidden></ul>
  <details class="openvino-networks" id="{name}_networks" data-openvino="networks" hidden>
    <summary data-openvino="networks-summary">Compiled networks</summary>
    <div class="openvino-scroll" role="region" aria-label="Compiled networks" tabindex="0">
      <table><thead><tr>{headings}</tr></thead><tbody data-openvino="rows"></tbody></table>
    </div>
  </details>
</section>"""


def _button(name: str, action: str, text: str, tip: str) -> str:
    return (
        f'<button type="button" id="{name}_{action}" data-openvino-action="{action}" title="{html.escape(tip)}">'
        f"{html.escape(text)}</button>"
    )
