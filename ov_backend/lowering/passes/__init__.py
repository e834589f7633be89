"""One graph pass a file; ov_backend/lowering/__init__.py lists their order."""
