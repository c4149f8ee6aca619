"""What a sandbox may use, and who holds it to that.

Each limit is *enforced* (the kernel refuses more), *watched* (the fork server measures and ends
what exceeds it) or *none* (not asked for); ``Sandbox.limits`` says which, and nothing is left out
in silence. ``declared`` is the request, part of a profile; ``cgroups``, ``rlimits`` and
``processors`` are what the kernel offers; ``usage`` and ``footprint`` measure; ``keeper`` is the
server's one place that decides. All but ``declared`` and ``capacity`` are loaded by the server and
stay light.
"""
