"""Filters of system calls: what programs in a sandbox may ask of the kernel, and what is reported.

The client compiles them (``policy``, ``notify``) to programs for the kernel's packet filter machine
(``bpf``); PID 1 gets bytes and installs them, so that it imports nothing for it. Both apply to PID
1, its monitors and every command; of two answers the kernel takes the stricter (seccomp(2)).
"""
