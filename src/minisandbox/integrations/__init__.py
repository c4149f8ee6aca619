"""The public API adapted to other ecosystems: one module each, which needs an extra of its own.

Only the ecosystem imports such a module, by an entry point or by name; nothing of the package does.
"""
