"""Starting the services that came with an instance's layers."""

from __future__ import annotations

from collections.abc import Iterable

from minisandbox.errors import HostUnsupported
from minisandbox.records.layer import LayerRef
from minisandbox.sandbox import Sandbox

#: Where services are inside: a folder each, with a program ``start``.
SERVICES = "/opt/services"

#: Seconds for all of them.
_TIMEOUT = 120.0

_START = f"""
set -eu
for start in {SERVICES}/*/start; do
    "$start" || exit
done
"""


def has_services(layers: Iterable[LayerRef]) -> bool:
    """Whether a layer holds a service."""
    return any(layer.kind == "service" for layer in layers)


def start_services(sandbox: Sandbox) -> None:
    """Start them and wait until they answer; raises ``HostUnsupported`` where one does not."""
    result = sandbox.run(
        ["/bin/bash", "-c", _START], cwd="/", user=0, timeout=_TIMEOUT, merge_stderr=True
    )
    if result.timed_out or result.exit_code != 0:
        said = " ".join(result.text.split())[-300:] or "it does not answer"
        raise HostUnsupported(
            f"the services of {sandbox.name}", said, "see 'services' in its recipe"
        )
