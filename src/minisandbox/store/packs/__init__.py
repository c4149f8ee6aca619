"""Packs: many layers in one file, each content once, near-equal contents beside each other.

``layout`` and ``skeleton`` are the bytes (``docs/formats.md``), ``catalogue`` finds the packs of a
store, ``reading`` takes tars and contents out, ``arrangement`` decides what lies beside what, and
``consolidation`` makes a pack of loose layers.
"""
