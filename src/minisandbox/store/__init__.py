"""The two stores: packed layers named by digest, and the same layers unpacked once per machine."""

from __future__ import annotations

from minisandbox.store.faults import StoreUnusable
from minisandbox.store.leases import Lease
from minisandbox.store.packed import Finding, Listing, Store
from minisandbox.store.unpacked import NodeStore, default_node_root, derived_name

__all__ = [
    "Finding",
    "Lease",
    "Listing",
    "NodeStore",
    "Store",
    "StoreUnusable",
    "default_node_root",
    "derived_name",
]
