"""Published schemas and documents follow the dataclasses."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from minisandbox.build.planning.recipes import Scope
from minisandbox.build.schemas import PUBLISHED, json_schema, manifest_schema
from minisandbox.records import stages
from minisandbox.records.image import ImageLayer, ImageRecord
from minisandbox.records.manifest import MANIFEST_SCHEMA, READABLE_SCHEMAS, ManifestRow
from minisandbox.records.plan import Recipe

CLONE = Path(__file__).parents[2]
FORMATS = (CLONE / "docs/formats.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_schemas_are_in_step(name: str) -> None:
    published = json.loads((CLONE / f"workflow/schemas/{name}.schema.json").read_text())
    assert published == json_schema(PUBLISHED[name]), "run tools/generate_schemas.py"


def test_no_other_schemas_are_published() -> None:
    files = {path.name for path in (CLONE / "workflow/schemas").iterdir()}
    assert files == {f"{name}.schema.json" for name in PUBLISHED}


RECORDS = [
    ManifestRow,
    ImageRecord,
    ImageLayer,
    stages.CloneRecord,
    stages.InterpreterRecord,
    stages.EnvironmentRecord,
    stages.InstanceRecord,
    stages.ValidationRecord,
    stages.TestRun,
]


@pytest.mark.parametrize("cls", RECORDS)
def test_every_field_is_described(cls: type) -> None:
    named = set(re.findall(r"`([A-Za-z_]+)`", FORMATS))
    assert {field.name for field in dataclasses.fields(cls)} <= named


def test_every_recipe_key_is_described() -> None:
    named = set(re.findall(r"`([a-z_]+)`", (CLONE / "config/README.md").read_text()))
    fields = (*dataclasses.fields(Recipe), *dataclasses.fields(Scope))
    keys = {field.name for field in fields} - {"name"}
    assert keys <= named


def test_every_failure_is_described() -> None:
    chapter = FORMATS.split("## Why stages fail")[1].split("\n## ")[0]
    assert set(stages.FAILURE_KINDS) == set(
        re.findall(r"^\| `([a-z-]+)` \|", chapter, re.MULTILINE)
    )


def test_the_schema_versions_are_described() -> None:
    assert f"writes **schema {MANIFEST_SCHEMA}**" in FORMATS
    readable = " and ".join(map(str, READABLE_SCHEMAS))
    assert f"reads **schema {readable}**" in FORMATS


def test_the_manifest_has_one_type_a_column() -> None:
    schema = manifest_schema()
    assert schema.names == [field.name for field in dataclasses.fields(ManifestRow)]
    layer = schema.field("layers").type.value_type
    assert [layer.field(i).name for i in range(layer.num_fields)] == [
        "kind",
        "digest",
        "size",
        "unpacked_size",
        "files",
    ]
