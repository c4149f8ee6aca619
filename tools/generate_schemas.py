"""Write workflow/schemas/*.json from the dataclasses; a test keeps them in step.

.venv/bin/python tools/generate_schemas.py
"""

from __future__ import annotations

import json
from pathlib import Path

from minisandbox.build.schemas import PUBLISHED, json_schema

FOLDER = Path(__file__).resolve().parents[1] / "workflow/schemas"


def text(name: str) -> str:
    """The content of one schema file."""
    return json.dumps(json_schema(PUBLISHED[name]), indent=2) + "\n"


def main() -> None:
    """Write every schema."""
    for name in PUBLISHED:
        (FOLDER / f"{name}.schema.json").write_text(text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
