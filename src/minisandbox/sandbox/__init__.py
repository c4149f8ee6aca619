"""Sandboxes: a process tree in namespaces of its own, over a stack of unpacked layers.

Plain Python and system calls; no root, no daemon, no set-uid program of ours. The package imports
only the standard library and the lowest modules of the project, and knows nothing of stores or
instances.
"""

from minisandbox.sandbox.client import Sandbox
from minisandbox.sandbox.limits.declared import Limits
from minisandbox.sandbox.popen import Process
from minisandbox.sandbox.profile import Bind, Network, Profile
from minisandbox.sandbox.result import Result
from minisandbox.sandbox.session import Session, SessionResult
from minisandbox.sandbox.snapshots import Reset, Snapshot
from minisandbox.sandbox.watching import Attempt

__all__ = [
    "Attempt",
    "Bind",
    "Limits",
    "Network",
    "Process",
    "Profile",
    "Reset",
    "Result",
    "Sandbox",
    "Session",
    "SessionResult",
    "Snapshot",
]
