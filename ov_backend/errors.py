"""Every exception this package raises, each a sentence: what was given, what is expected, what to do."""

from __future__ import annotations


class OVBackendError(Exception):
    """Base of all exceptions raised by ov_backend."""


class SettingsError(OVBackendError, ValueError):
    """A setting has an unknown name or a value that cannot be used."""


class DeviceError(OVBackendError, ValueError):
    """A device does not exist here, or cannot do what it was asked for."""


class CaptureError(OVBackendError):
    """A module cannot be traced into one graph; the message says why."""


class ConversionError(OVBackendError):
    """OpenVINO has no conversion for a graph; the message names the operators."""


class NothingToCompute(ConversionError):
    """A graph only hands its inputs back; PyTorch does that for nothing, and it is no fallback."""


class InputMismatch(OVBackendError, ValueError):
    """A compiled graph was called with another name, shape or dtype than it was compiled for."""


class NonFiniteOutput(OVBackendError):
    """A compiled graph returned NaN or infinity where PyTorch in f32 would not."""


class Interrupted(OVBackendError):
    """Whoever waited for a network to be prepared was asked to stop; no fallback, and nothing is answered."""


class PatchError(OVBackendError):
    """A forward is already swapped, or was replaced by somebody else in the meantime."""


class CheckpointError(OVBackendError, ValueError):
    """A file is not a Stable Diffusion checkpoint that can be read safely."""
