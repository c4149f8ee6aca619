"""Inspect AI: the sandbox provider ``minisandbox`` and a scorer for instances of a cache.

Inspect imports this package by the entry point group ``inspect_ai``, which registers both.
"""

from __future__ import annotations

from minisandbox.integrations.inspect_ai.provider import (
    MiniSandboxConfig,
    MiniSandboxEnvironment,
)
from minisandbox.integrations.inspect_ai.scoring import resolved

__all__ = ["MiniSandboxConfig", "MiniSandboxEnvironment", "resolved"]
