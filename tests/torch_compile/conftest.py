"""The helpers of these tests are in tests/helpers/torch_compile.py, the fixture ``compiled`` is in tests/conftest.py."""

from tests.helpers.torch_compile import Compile, agree, calls, fallbacks

__all__ = ["Compile", "agree", "calls", "fallbacks"]
