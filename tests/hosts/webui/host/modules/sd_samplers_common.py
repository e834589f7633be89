"""Shared by all samplers."""


class InterruptedException(BaseException):
    """The user has interrupted or skipped the generation."""
