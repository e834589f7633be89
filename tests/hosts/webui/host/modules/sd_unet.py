"""Another extension's UNet in the place of the model's own."""

from __future__ import annotations

from typing import Any

current_unet: Any = None


def create_unet_forward(original_forward: Any) -> Any:
    def UNetModel_forward(self: Any, x: Any, timesteps: Any = None, context: Any = None, *args: Any, **kwargs: Any) -> Any:
        if current_unet is not None:
            return current_unet.forward(x, timesteps, context, *args, **kwargs)
        return original_forward(self, x, timesteps, context, *args, **kwargs)

    return UNetModel_forward
