"""Graph passes, one per file; ov_backend/trace/lowering/__init__.py lists their order."""
