"""SWE-MiniSandbox: executable checkouts for software-engineering agents, without containers.

``open_cache("results").materialize(instance_id)`` is the whole runtime API in one line. Importing this package
stays light (no pandas, no Snakemake): training processes import it thousands of times.
"""

from __future__ import annotations

__version__ = "0.1.0"
