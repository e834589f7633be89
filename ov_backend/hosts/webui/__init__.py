"""AUTOMATIC1111's Stable Diffusion WebUI. No other package imports the WebUI's package ``modules``."""
