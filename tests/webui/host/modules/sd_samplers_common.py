"""What samplers share."""


class InterruptedException(BaseException):
    """The user wants no more steps."""
