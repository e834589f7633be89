"""The commands of ``python -m ov_backend`` that are more than a few lines; ``ov_backend/__main__.py`` has the others."""
