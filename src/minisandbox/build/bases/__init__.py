"""Packed bases: a distribution's packages as layers, in place of the host's /usr."""
