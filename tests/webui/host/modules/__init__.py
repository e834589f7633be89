"""A stand-in for the WebUI's package ``modules``: as much of it as the tests need, true to what was observed of v1.10.1.

It really samples: the original ldm classes, transformers' text encoder, k-diffusion's samplers.
"""
