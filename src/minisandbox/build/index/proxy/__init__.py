"""A package index as of a date, for installers that can reach nothing else.

``IndexProxy`` answers on a socket that somebody else made; what it serves comes from the index of
this machine, through a cache that all builds share. It records what it served, and can later serve
exactly that again. The names of the projects that a build asks for leave this machine: to the
index, and to nobody else.
"""

from minisandbox.build.index.proxy.fetching import Patience
from minisandbox.build.index.proxy.proxy import IndexProxy

__all__ = ["IndexProxy", "Patience"]
