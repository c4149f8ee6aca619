"""Instances as OCI images for container engines, and images of theirs for our sandboxes.

Images are read from files and written to files: pushing and pulling is what the ordinary tools do.
Nothing of an image that others made is trusted; see ``sifting`` for what becomes of its layers.
"""

from __future__ import annotations

from minisandbox.oci.exporting import Exported, export_instances
from minisandbox.oci.importing import import_image

__all__ = ["Exported", "export_instances", "import_image"]
