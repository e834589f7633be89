"""Graph passes, one per file; ov_backend/lowering/__init__.py lists their order."""
