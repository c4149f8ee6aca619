"""conda's descriptions of environments as requirements of pip, and what is dropped on the way."""

from __future__ import annotations

import pytest

from minisandbox.build.planning.conda import (
    PipEnvironment,
    from_environment_yml,
    from_export,
    from_packages,
)
from minisandbox.errors import InvalidInput

NO_PYTHON = "no Python files of its own: a library, program or second name"
QT = "Qt bindings, which need the libraries of a desktop"


def export(*lines: str, python: str = "3.9.20", pip: tuple[str, ...] = ()) -> str:
    rows = ["name: testbed", "channels:", "  - defaults", "dependencies:"]
    rows += [f"  - {line}" for line in (f"python={python}=he870216_1", *lines)]
    if pip:
        rows += ["  - pip:", *(f"      - {line}" for line in pip)]
    return "\n".join([*rows, "prefix: /opt/miniconda3/envs/testbed", ""])


def converted(*lines: str, python: str = "3.9.20", pip: tuple[str, ...] = ()) -> PipEnvironment:
    return from_export(export(*lines, python=python, pip=pip), where="e.yml")


def test_an_export_becomes_all_that_is_to_be_installed() -> None:
    text = export(
        "_libgcc_mutex=0.1=main",
        "openssl=3.0.15=h5eee18b_0",
        "pip=24.2=py39h06a4308_0",
        "tzdata=2024b=h04d1e81_0",
        "wheel=0.44.0=py39h06a4308_0",
        pip=("attrs==23.1.0", "setuptools==68.0.0"),
    )
    assert from_export(text, where="e.yml") == PipEnvironment(
        python="3.9",
        python_full="3.9.20",
        requirements=("attrs==23.1.0", "pip==24.2", "setuptools==68.0.0", "wheel==0.44.0"),
        complete=True,
        dropped=(
            f"_libgcc_mutex=0.1 ({NO_PYTHON})",
            f"openssl=3.0.15 ({NO_PYTHON})",
            f"tzdata=2024b ({NO_PYTHON})",
        ),
    )


@pytest.mark.parametrize(
    ("line", "requirement"),
    [
        ("certifi=2024.8.30=pyhd8ed1ab_0", "certifi==2024.8.30"),
        ("click-plugins=1.1.1=py_0", "click-plugins==1.1.1"),
        ("botocore=1.35.23=pyge310_1234567_0", "botocore==1.35.23"),
        ("click=8.1.7=unix_pyh707e725_0", "click==8.1.7"),
        ("h5py=3.12.1=nompi_py310h60e0fe6_102", "h5py==3.12.1"),
        ("pyarrow-core=17.0.0=py310h85d79f8_1_cpu", "pyarrow==17.0.0"),
        ("conda-forge::toolz=1.0.0=pyhd8ed1ab_0", "toolz==1.0.0"),
        ("backports.zoneinfo=0.2.1=py38h7f8727e_0", "backports-zoneinfo==0.2.1"),
        ("ruamel_yaml=0.17.21=py38h7f8727e_0", "ruamel-yaml==0.17.21"),
        ("antlr-python-runtime=4.11.1=pyhd8ed1ab_0", "antlr4-python3-runtime==4.11.1"),
        ("python-tzdata=2024.2=pyhd8ed1ab_0", "tzdata==2024.2"),
        ("iris=3.10.0=pyha770c72_0", "scitools-iris==3.10.0"),
        ("pip=21.2.2=py38h06a4308_0", "pip==21.2.2"),
    ],
)
def test_a_build_string_tells_a_python_distribution(line: str, requirement: str) -> None:
    assert converted(line, python="3.8.20").requirements == (requirement,)
    assert converted(line, python="3.8.20").dropped == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("brotli=1.1.0=hb9d3cd8_2", NO_PYTHON),
        ("importlib_metadata=8.5.0=hd8ed1ab_0", NO_PYTHON),
        ("python_abi=3.9=2_cp39", NO_PYTHON),
        ("pyqt5-sip=12.13.0=py39h5eee18b_0", QT),
        ("esmpy=8.7.0=pyhecae5ae_1", "the ESMF bindings are not on the package index"),
        (
            "backports.zoneinfo=0.2.1=py39h06a4308_0",
            "in the standard library since Python 3.9",
        ),
        ("pip=10.0.1=py39_0", "older than pip 20.3, the environment brings its own"),
    ],
)
def test_what_pip_cannot_have_is_dropped_with_its_reason(line: str, reason: str) -> None:
    assert converted(line).requirements == ()
    assert converted(line).dropped == (f"{line.rpartition('=')[0]} ({reason})",)


def test_backports_are_compared_as_versions_of_python() -> None:
    line = "backports.zoneinfo=0.2.1=py310hff52083_8"
    assert converted(line, python="3.10.15").requirements == ()


def test_two_names_of_one_distribution_are_one_requirement() -> None:
    found = converted(
        "matplotlib-base=3.9.2=py39hbfdbfaf_1",
        "matplotlib=3.9.2=py39h06a4308_1",
        "typing-extensions=4.12.2=hd8ed1ab_0",
        "typing_extensions=4.12.2=pyha770c72_0",
        "brotli=1.1.0=hb9d3cd8_2",
        "brotli-python=1.0.9=py39h6a678d5_8",
    )
    assert found.requirements == (
        "brotli==1.0.9",
        "matplotlib==3.9.2",
        "typing-extensions==4.12.2",
    )


def test_the_pip_section_replaces_what_conda_installed() -> None:
    found = converted(
        "setuptools-scm=8.2.0=pyhd8ed1ab_0",
        "seaborn-base=0.13.2=pyhd8ed1ab_2",
        pip=("setuptools_scm==7.1.0", "seaborn==0.13.2"),
    )
    assert found.requirements == ("seaborn==0.13.2", "setuptools-scm==7.1.0")
    assert found.dropped == (
        "setuptools-scm=8.2.0 (replaced by setuptools_scm==7.1.0 of the pip section)",
        "seaborn-base=0.13.2 (replaced by seaborn==0.13.2 of the pip section)",
    )


def test_versions_without_a_wheel_give_way_to_the_nearest_and_are_recorded() -> None:
    lines = ("numpy-base=1.19.2=py39h2ae0177_0", "numpy=1.19.2=py39h89c1606_0")
    found = converted(*lines)
    assert found.requirements == ("numpy==1.19.5",)
    assert found.dropped == ("numpy=1.19.2 (no wheel for Python 3.9: 1.19.5)",)
    assert converted(*lines, python="3.8.20").requirements == ("numpy==1.19.2",)


@pytest.mark.parametrize(
    ("pip", "requirements"),
    [
        (("ipython==8.32.0",), ("ipython==8.32.0", "matplotlib-inline==0.1.7")),
        (
            ("ipython==8.32.0", "matplotlib_inline==0.1.6"),
            ("ipython==8.32.0", "matplotlib-inline==0.1.6"),
        ),
        (("ipython==7.16.3",), ("ipython==7.16.3",)),
    ],
)
def test_what_exports_leave_out_is_put_back(
    pip: tuple[str, ...], requirements: tuple[str, ...]
) -> None:
    assert converted(pip=pip).requirements == requirements


def test_exports_of_other_editors_read_the_same() -> None:
    text = export("six=1.16.0=pyhd3eb1b0_1", pip=("attrs==23.1.0",))
    plain = from_export(text, where="e.yml")
    assert from_export(text.replace("\n", "\r\n"), where="e.yml") == plain
    assert from_export("\ufeff" + text, where="e.yml") == plain
    assert from_export(text + "  # the end\n", where="e.yml") == plain
    empty = text.replace("      - attrs==23.1.0\n", "")
    assert from_export(empty, where="e.yml").requirements == ("six==1.16.0",)


def test_variables_of_an_environment_are_not_lost_in_silence() -> None:
    text = export() + "variables:\n  DEBUG: 1\n"
    assert from_export(text, where="e.yml").dropped == (
        "variables: DEBUG (variables belong into 'env' of the recipe)",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "e.yml: is empty"),
        ("- a\n", "e.yml line 1: is not a mapping"),
        ("name: x\n", "e.yml: has no 'dependencies'"),
        ("dependencies: numpy\n", "e.yml line 1: is not a list"),
        ("dependencies:\n\t- numpy\n", "e.yml line 2: is not YAML"),
        ("dependencies: [a\n", "e.yml line 2: is not YAML"),
        ("a: \0\n", "e.yml: is not YAML"),
        ("a: " + "[" * 5000, "e.yml: is not an environment file (nested too deep)"),
        ("dependencies: []\ndependencies: []\n", "e.yml line 2: has 'dependencies' a second time"),
        ("dependencies:\n  -\n", "e.yml line 2: is not text"),
        ("dependencies:\n  - [a]\n", "e.yml line 2: is not text"),
        ("dependencies:\n  - npm: [a]\n", "e.yml line 2: has npm among the dependencies"),
        ("dependencies:\n  - {}\n", "e.yml line 2: has an empty mapping among the"),
        ("dependencies: []\n", "e.yml: pins no version of python"),
        (export("python=3.8.1=h_0"), "e.yml: pins 3.9.20 and 3.8.1 of python"),
        (export(python="3"), "e.yml: pins 3 of python"),
        (export("numpy=1.19.2"), "e.yml line 6: 'numpy=1.19.2' is not name=version=build"),
        (export("numpy"), "e.yml line 6: 'numpy' is not name=version=build"),
        (export("a==1"), "e.yml line 6: 'a==1' is not name=version=build"),
        (export("é=1=py39_0"), "e.yml line 6: 'é=1' has no name that pip knows"),
        (export("_a=1=py39_0"), "e.yml line 6: '_a=1' has no name that pip knows"),
        (export("a=1_x_y=py39_0"), "e.yml line 6: '1_x_y' is not a version that pip knows"),
        (export(pip=("a>=1",)), "e.yml line 7: 'a>=1' is not name==version"),
        (export(pip=("a b==1",)), "e.yml line 7: 'a b==1' has no name that pip knows"),
        (export(pip=("a==",)), "e.yml line 7: '' is not a version that pip knows"),
        (
            export("a=1=py39_0", "A=2=py39_0"),
            "e.yml line 7: has A=2, but there is a=1 already",
        ),
        (
            export(pip=("a==1", "a==2")),
            "e.yml line 8: has a==2, but there is a==1 already",
        ),
    ],
)
def test_an_export_that_cannot_be_used_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        from_export(text, where="e.yml")
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("packages", "requirements"),
    [
        ("", ()),
        ("mpmath flake8", ("flake8", "mpmath")),
        ("cython=0.29 setuptools==38.2.4", ("cython==0.29.*", "setuptools==38.2.4")),
        ("'pandas<2.0.0' \"matplotlib <3.9.0\"", ("matplotlib<3.9.0", "pandas<2.0.0")),
        ("'c >=2 , <3'", ("c<3,>=2",)),
        ("'numpy 1.8.1' 'scipy 1.8.* py36_0'", ("numpy==1.8.1", "scipy==1.8.*")),
        ("a=1.2.* b=1.2* c==1.2.* d=* 'e *'", ("a==1.2.*", "b==1.2.*", "c==1.2.*", "d", "e")),
        ("a=1.2=py39_0 b==1.2=py39_0", ("a==1.2", "b==1.2")),
        ("a>=1.2.* b!=1.2.* c~=1.2", ("a>=1.2", "b!=1.2.*", "c~=1.2")),
        ("'a>1,!=1.5,<=2'", ("a!=1.5,<=2,>1",)),
        ("conda-forge::numpy conda-forge/linux-64::scipy", ("numpy", "scipy")),
        ("'nbconvert[execute]!=6.0.0,!=6.0.1'", ("nbconvert[execute]!=6.0.0,!=6.0.1",)),
        ("pytest setuptools pytest", ("pytest", "setuptools")),
        ("'numpy>=1.19' 'numpy<2'", ("numpy<2,>=1.19",)),
        ("Typing_Extensions pytorch=2", ("torch==2.*", "typing-extensions")),
        ("pip=24", ("pip==24.*",)),
    ],
)
def test_conda_specifications_become_requirements(
    packages: str, requirements: tuple[str, ...]
) -> None:
    assert from_packages(packages, python="3.9", where="r") == PipEnvironment(
        python="3.9", python_full="", requirements=requirements, complete=False, dropped=()
    )


def test_packages_that_pip_cannot_have_are_dropped_with_their_reason() -> None:
    found = from_packages(
        "python=3.9 numpy==1.19.2 hdf5 gcc_linux-64 pyqt=5 pip _openmp_mutex dataclasses",
        python="3.9.20",
        where="r",
    )
    assert found.python == "3.9"
    assert found.requirements == ("numpy==1.19.5",)
    assert found.dropped == (
        "python=3.9 (the recipe says Python 3.9)",
        "hdf5 (not a Python distribution)",
        "gcc_linux-64 (not a Python distribution)",
        f"pyqt=5 ({QT})",
        "pip (every environment has one)",
        "_openmp_mutex (conda's own bookkeeping)",
        "dataclasses (in the standard library since Python 3.7)",
        "numpy=1.19.2 (no wheel for Python 3.9: 1.19.5)",
    )


@pytest.mark.parametrize(
    ("packages", "problem"),
    [
        ("requirements.txt", "is an option or a file"),
        ("environment.yml", "is an option or a file"),
        ("-c conda-forge numpy", "is an option or a file"),
        ("'numpy", "cannot be split into words"),
        ("numpy=1.8|1.9", "has alternatives"),
        ("'a b c d'", "has more than a version and a build string"),
        ("numpy>=", "is not a conda specification"),
        ("numpy==1=2=3", "is not a conda specification"),
        ("a=,", "is not a conda specification"),
        ("''", "is not a conda specification"),
        ("nümpy", "is not a conda specification"),
        ("numpy-", "is not a conda specification"),
        ("numpy[", "is not a conda specification"),
        ("numpy[version='>=1']", "is not a conda specification"),
        ("numpy[,]", "has a version or extra that pip cannot read"),
        ("openssl=1.1.1_w_x", "has a version or extra that pip cannot read"),
        ("a==1 a==2", "asks for another version than 'a==1'"),
        ("python=3.8 numpy", "contradicts Python 3.9"),
        ("'python>=3.10' numpy", "contradicts Python 3.9"),
    ],
)
def test_a_specification_that_cannot_be_used_is_one_sentence(packages: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        from_packages(packages, python="3.9", where="recipe x")
    assert str(raised.value).startswith("recipe x: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("python", ["", "3", "3.9.x", ">=3.9", "3.٩"])
def test_a_python_is_a_version(python: str) -> None:
    with pytest.raises(InvalidInput, match="is not a version; expected one like"):
        from_packages("numpy", python=python, where="r")


def test_an_environment_file_becomes_requirements_to_resolve() -> None:
    text = """\
name: tests
channels: [conda-forge]
dependencies:
  - python>=3.12
  - matplotlib-base
  - netcdf4  # no relation to netCDF-C
  - hdf5
  - numpy=1.10
  - pip
  - pip:
      - numbagg
      - Types_PyYAML>=6
      - numpy
      - foo[bar]==1.0; python_version < "3.10"
      - git+https://example.org/a.git@main#egg=a
      - -e .
"""
    assert from_environment_yml(text, python="3.10", where="e.yml") == PipEnvironment(
        python="3.10",
        python_full="",
        requirements=(
            'foo[bar]==1.0; python_version < "3.10"',
            "git+https://example.org/a.git@main#egg=a",
            "matplotlib",
            "netcdf4",
            "numbagg",
            "numpy==1.10.*",
            "types-pyyaml>=6",
        ),
        complete=False,
        dropped=(
            "python>=3.12 (the recipe says Python 3.10)",
            "hdf5 (not a Python distribution)",
            "pip (every environment has one)",
            "-e . (editable: the install command of the recipe installs the repository)",
        ),
    )


def test_a_pip_section_with_a_version_replaces_condas() -> None:
    text = "dependencies: [numpy=1.19, scipy, pip: [numpy==1.20.1, 'scipy @ https://x.org/s.whl']]"
    found = from_environment_yml(text, python="3.9", where="e.yml")
    assert found.requirements == ("numpy==1.20.1", "scipy@ https://x.org/s.whl")
    assert found.dropped == ("numpy==1.19.* (replaced by numpy==1.20.1 of the pip section)",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dependencies:\n  - numpy=1|2\n", "e.yml line 2: 'numpy=1|2' has alternatives"),
        ("dependencies:\n  - pip:\n    - a=1\n", "e.yml line 3: 'a=1' is not a requirement"),
        ("dependencies:\n  - pip: a\n", "e.yml line 2: is not a list"),
        (
            "dependencies:\n  - pip:\n    - a==1\n    - A==2\n",
            "e.yml line 4: 'A==2' asks for another version than 'a==1'",
        ),
        (
            "dependencies:\n  - pip:\n    - a==1\n    - a @ https://x.org/a.whl\n",
            "e.yml line 4: 'a @ https://x.org/a.whl' asks for another version than 'a==1'",
        ),
        ("dependencies: &a [*a]\n", "e.yml line 1: is not text"),
        ("dependencies: []\nvariables: [A]\n", "e.yml line 2: is not a mapping"),
    ],
)
def test_an_environment_file_that_cannot_be_used_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        from_environment_yml(text, python="3.9", where="e.yml")
    assert str(raised.value).startswith(sentence)
