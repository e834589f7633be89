"""A stand-in for the WebUI's package ``modules``: the parts that the tests need, behaving as v1.10.1 does.

It really samples: with the original ldm classes, transformers' text encoder and k-diffusion's samplers.
"""
