"""Imported by the server of tests/helpers/alone.py, so that the processes forked from it need not import it."""

import gc

import functorch.compile
import numpy
import openvino
import pytest
import torch._dynamo

import ov_backend.pipelines.accelerate
import ov_backend.torch_compile.backend
from tests.helpers.frozen import leave_guards_unmeasured

__all__ = ["functorch", "numpy", "openvino", "ov_backend", "pytest", "torch"]

gc.collect()
gc.freeze()
leave_guards_unmeasured()
