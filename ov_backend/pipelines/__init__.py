"""``accelerate`` and ``precompile`` for diffusers pipelines and dicts of modules."""
