"""The arrows between the modules of the package, read from the source itself.

errors, atomic, closing, records, keys, sizes, linux, idmap <- process, archive, pipconfig
<- store, sandbox <- runtime <- evaluate, oci <- build <- cli. Beside cli are integrations: one
module an ecosystem, which nothing here imports. Stages of the pipeline meet in records on disk and
never import each other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src"
PACKAGE = "minisandbox"

#: Each layer may import from itself and from those above it in this list.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "errors",
            "atomic",
            "closing",
            "records",
            "keys",
            "linux",
            "idmap",
            "mounts",
            "namespaces",
            "removal",
            "sizes",
        }
    ),
    frozenset({"process", "archive", "pipconfig"}),
    frozenset({"store", "sandbox"}),
    frozenset({"runtime"}),
    frozenset({"evaluate", "oci"}),
    frozenset({"build"}),
    frozenset({"cli", "integrations"}),
)
#: Neighbours in one layer that must not know each other all the same.
STRANGERS = frozenset(
    {
        ("store", "sandbox"),
        ("sandbox", "store"),
        ("evaluate", "oci"),
        ("oci", "evaluate"),
        ("cli", "integrations"),
        ("integrations", "cli"),
    }
)

#: The modules of `build` that are one pipeline stage each ...
STAGES = frozenset(
    {"plan", "clone", "base", "interpreter", "environment", "instances", "validate", "manifest"}
)
#: ... and those that stages share.
SHARED = frozenset(
    {
        "bases",
        "batches",
        "build_files",
        "checkouts",
        "dropping",
        "fetching",
        "index",
        "planning",
        "relocate",
        "schemas",
        "service_layers",
        "services",
        "stage",
        "system_packages",
        "validation",
        "virtualenv_tool",
        "workshop",
    }
)

#: What may be imported when a module of the runtime half is imported; the rest is loaded on use.
RUNTIME_THIRD_PARTY = frozenset({"zstandard"})

#: A package of `integrations` is only loaded by its ecosystem, with what that brings.
OF_ECOSYSTEMS = {
    "inspect_ai": frozenset({"anyio", "inspect_ai", "pydantic", "typing_extensions"}),
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module a tree imports; `from minisandbox import keys` counts as `minisandbox.keys`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def imports_at_once(tree: ast.Module) -> Iterator[str]:
    """What is imported with the module: not inside a function, not for type checkers only."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield from imports(node)


def own_imports(name: str) -> list[list[str]]:
    """The package's own modules that `name` imports, as parts below the package."""
    tree = ast.parse(MODULES[name].read_bytes())
    own = [target.split(".")[1:] for target in imports(tree) if target.split(".")[0] == PACKAGE]
    return [parts for parts in own if parts]


def layer_of(component: str) -> int:
    for number, layer in enumerate(LAYERS):
        if component in layer:
            return number
    pytest.fail(f"{component} has no place in LAYERS: give it one")


@pytest.mark.parametrize("name", [name for name in MODULES if name != PACKAGE])
def test_arrows_point_down(name: str) -> None:
    component = name.split(".")[1]
    for parts in own_imports(name):
        assert layer_of(parts[0]) <= layer_of(component), f"{name} imports {'.'.join(parts)}"
        assert (component, parts[0]) not in STRANGERS, f"{name} imports {'.'.join(parts)}"


def test_the_package_itself_loads_at_most_the_runtime() -> None:
    for parts in own_imports(PACKAGE):
        assert layer_of(parts[0]) <= layer_of("runtime")


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith(f"{PACKAGE}.build.")])
def test_stages_do_not_import_each_other(name: str) -> None:
    module = name.split(".")[2]
    assert module in STAGES | SHARED, f"{name} is neither in STAGES nor in SHARED"
    siblings = {parts[1] for parts in own_imports(name) if parts[0] == "build" and len(parts) > 1}
    assert not (siblings - {module}) & STAGES, f"{name} imports a stage"


@pytest.mark.parametrize("name", [name for name in MODULES if ".build" not in name])
def test_heavy_imports_wait_until_they_are_needed(name: str) -> None:
    at_once = {
        target.split(".")[0] for target in imports_at_once(ast.parse(MODULES[name].read_bytes()))
    }
    foreign = at_once - set(sys.stdlib_module_names) - {PACKAGE}
    ecosystem = name.split(".")[2] if f"{PACKAGE}.integrations." in name else ""
    assert foreign <= RUNTIME_THIRD_PARTY | OF_ECOSYSTEMS.get(ecosystem, frozenset())


def test_importing_the_package_loads_nothing_foreign() -> None:
    # -I -S: no site-packages, so that anything foreign would fail and nothing is loaded beside us.
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import {PACKAGE}; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True
    )
    loaded = {module.split(".")[0] for module in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) <= {PACKAGE, "__main__"}
