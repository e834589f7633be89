"""Prepares the networks of a generation before it calls them: those that the last generation of the same kind has called.

When a batch begins, sizes are known and LoRAs are set: the UNet and the VAE are compiled while the prompt is encoded, the
VAE also while the UNet samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from modules import shared

from ov_backend.engine.ahead.history import RememberedCall, kind_of
from ov_backend.engine.network import Network
from ov_backend.hosts.webui.detect import host
from ov_backend.hosts.webui.patch_points import HostNetwork
from ov_backend.hosts.webui.session import session
from ov_backend.ui.choices import Choices
from ov_backend.ui.likely import RequestedShape, request_of

#: The setting that switches it, here and before a generation.
PREPARE_AHEAD = "openvino_prepare_ahead"


def enabled() -> bool:
    """Whether the setting is on."""
    return bool(getattr(shared.opts, PREPARE_AHEAD, True))


def _request_of(p: Any, choices: Choices) -> str:
    hires = [str(getattr(p, name, "")) for name in ("hr_scale", "hr_resize_x", "hr_resize_y", "hr_checkpoint_name")]
    return request_of(
        RequestedShape(p.width, p.height, p.batch_size, bool(getattr(p, "init_images", None))),
        p.cfg_scale != 1,
        choices,
        tokens=[_tokens(getattr(p, "prompts", None)), _tokens(getattr(p, "negative_prompts", None))],
        hires=hires if getattr(p, "enable_hr", False) else None,
        refiner=getattr(p, "refiner_checkpoint", None) or None,
    )


def _tokens(prompts: Any) -> int:
    """The tokens that the longest of these prompts is padded to; 0 where the model does not say."""
    longest = 0
    with contextlib.suppress(Exception):  # the model's tokenizer is the WebUI's, or another extension's
        for prompt in prompts or ():
            longest = max(longest, host.tokens(prompt))
    return longest


class Later(NamedTuple):
    """What a batch will call of another model than the one that samples first, such as a refiner: its VAE decodes."""

    calls: Sequence[RememberedCall]
    choices: Choices
    first: tuple[int, Any]

    def begin(self) -> bool:
        """Prepare it in the background once that model samples; False until then."""
        engine = session.engine
        if engine is None or _checkpoint() == self.first:
            return False
        calls = [call._replace(number=0) for call in self.calls]
        engine.prepare_ahead(calls, networks_of(calls, self.choices))
        return True


def _checkpoint() -> tuple[int, Any]:
    """The model in use and whose weights it has: the WebUI may load others into the same object."""
    return id(host.model()), getattr(host.model(), "sd_checkpoint_info", None)


def begin_batch(p: Any, choices: Choices) -> Later | None:
    """A batch of a generation begins: prepare in the background what the last batch with the same request has called.

    The text encoders are left out: they run now.
    """
    engine, unet = session.engine, denoiser()
    if engine is None:
        return None
    engine.begin_picture()
    if unet is None or not enabled():
        return None
    calls = engine.begin_run(kind_of(unet), _request_of(p, choices))
    calls = [call for call in calls if not call.role.startswith("text_encoder")]
    others = bool(getattr(p, "refiner_checkpoint", None) or getattr(p, "hr_checkpoint_name", None))
    now = [call for call in calls if call.role == "unet" or not others]
    engine.prepare_ahead(now, networks_of(now, choices, others))
    last = [call for call in calls[-1:] if call.role != "unet"]
    return Later(last, choices, _checkpoint()) if others and last else None


def denoiser() -> Any:
    """The UNet of the model in use, or None."""
    return next((network.module for network in host.networks_of(host.model()) if network.role == "unet"), None)


def networks_of(calls: Sequence[RememberedCall], choices: Choices, others: bool = False) -> list[Network]:
    """The networks of remembered calls that are answered as a whole, with the LoRAs that are set.

    Args:
        calls: the calls.
        choices: what runs where.
        others: whether other loaded models may be called too, such as a refiner's.
    """
    roles = {call.role for call in calls}
    models = [host.model(), *(host.models() if others else ())]
    host_networks = {id(each.owner): each for model in models for each in host.networks_of(model)}
    networks: list[Network] = []
    for network in host_networks.values():
        if network.role in roles and getattr(choices, network.switch) and _is_plain(network):
            host.update_weights(network.module)
            networks.append(session.network(network, network.class_function))
    return networks


def _is_plain(network: HostNetwork) -> bool:
    """Whether a network is answered as a whole, as far as that is known before sampling."""
    return network.instance_function is None and not host.replaced(network) and not host.refusal(network)
