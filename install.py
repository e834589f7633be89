"""Installs OpenVINO into the WebUI's environment if it is not there; changes nothing else."""

import launch

if not launch.is_installed("openvino"):
    launch.run_pip('install "openvino>=2026.1"', "OpenVINO for the Accelerate with OpenVINO script")
