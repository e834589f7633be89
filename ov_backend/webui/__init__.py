"""The host: AUTOMATIC1111's Stable Diffusion WebUI. The only place that imports its package ``modules``."""
