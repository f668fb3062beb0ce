"""Tells which model a torch device is and how much memory it has."""

from __future__ import annotations

import os
import platform

import torch


def device_memory_bytes(device: torch.device) -> int:
    """Total memory of the device in bytes; for a CPU, half of the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def device_name(device: torch.device) -> str:
    """The device's model as text. Two devices with equal names are taken to be equally fast."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.processor() or platform.machine()}, {os.cpu_count()} cores"
