"""Attacks on a sandbox, as programs that run unchanged inside of any kind of it.

The package is packed into one file, shown inside and run there: ``python3 attacks.pyz NAME FACTS``.
Each module holds the attacks on one thing; ``harness`` is the part that stays outside. All is
harmless where it succeeds: what is opened for writing is closed unwritten, settings get the value
that they have, and signals go to processes that the harness has started for them.
"""
