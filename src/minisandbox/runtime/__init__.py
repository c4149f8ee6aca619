"""The public runtime: open a cache, materialize an instance, run commands in it.

from minisandbox.runtime import open_cache

with open_cache("results").materialize("sqlparse-0.4.4") as instance:
    print(instance.run("python -m pytest -q").text)
"""

from __future__ import annotations

from minisandbox.runtime.cache import Cache, open_cache
from minisandbox.runtime.image import Image, open_image
from minisandbox.runtime.instance import Instance, start_instance
from minisandbox.runtime.profiles import profile_of

__all__ = [
    "Cache",
    "Image",
    "Instance",
    "open_cache",
    "open_image",
    "profile_of",
    "start_instance",
]
