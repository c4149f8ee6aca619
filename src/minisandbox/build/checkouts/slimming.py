"""Leaves out what an install compiled and nothing reads again: most bytes of such an instance."""

from __future__ import annotations

from minisandbox.build.checkouts.checkout import run_script
from minisandbox.build.workshop import Workshop


def slim(shop: Workshop) -> None:
    """Remove objects of setuptools from the checkout, and debugging information from libraries.

    Raises ``StageFailed``.
    """
    run_script(
        shop,
        "slim.sh",
        what="leaving out what the install compiled on its way",
        purpose="slim",
        timeout=600,
    )
