"""SWE-MiniSandbox: executable checkouts for software-engineering agents, without containers.

``open_cache("results").materialize(instance_id)`` is the whole runtime API in one line. Importing
this package stays light (no pandas, no Snakemake): training processes import it thousands of times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from minisandbox.runtime import Cache, Image

__version__ = "0.1.0"

__all__ = ["__version__", "open_cache", "open_image"]


def open_cache(folder: str | Path = "results", *, store: str | Path | None = None) -> Cache:
    """Open the cache in ``folder``: see ``minisandbox.runtime.open_cache``."""
    from minisandbox import runtime

    return runtime.open_cache(folder, store=store)


def open_image(
    name: str, folder: str | Path = "results", *, store: str | Path | None = None
) -> Image:
    """Open an imported image: see ``minisandbox.runtime.open_image``."""
    from minisandbox import runtime

    return runtime.open_image(name, folder, store=store)
