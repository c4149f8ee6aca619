"""Requirement files as arguments of pip: each line is kept as it is, or dropped with a reason."""

from __future__ import annotations

import pytest

from minisandbox.build.planning.conda import from_requirements
from minisandbox.errors import InvalidInput

EDITABLE = "editable: the install command of the recipe installs the repository"
FILE = "another file: put its lines in here"
INDEX = "the pipeline says where packages come from"
PATH = "a path: the environment is built before the repository is there"


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "python-memcached >= 1.59",
        "pywatchman; sys.platform != 'win32'",
        "Jinja2[i18n]>=2.9.2,<4",
        "tox == 4.16.0",
        "a @ https://example.org/a-1-py3-none-any.whl",
        "a@https://example.org/a-1-py3-none-any.whl",
        "git+https://example.org/a.git@main#egg=a",
        "https://example.org/a.tar.gz ; python_version < '3.9'",
    ],
)
def test_a_requirement_is_kept_as_it_is_written(line: str) -> None:
    assert from_requirements(line, where="r.txt") == ((line,), ())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-e .", EDITABLE),
        ("-e.[test]", EDITABLE),
        ("--editable=git+https://example.org/a.git#egg=a", EDITABLE),
        ("-r dev.txt", FILE),
        ("-rdev.txt", FILE),
        ("--requirement dev.txt", FILE),
        ("-c constraints.txt", FILE),
        ("--find-links https://example.org", INDEX),
        ("--extra-index-url=https://example.org", INDEX),
        ("--pre", "an option of pip"),
        ("--index", "an option of pip"),
        (".", PATH),
        (".[test]", PATH),
        ("./sub", PATH),
        ("../up", PATH),
        ("/root/a", PATH),
        ("file:///root/a", PATH),
        ("a @ file:///root/a", PATH),
        ("a-1-py3-none-any.whl", PATH),
    ],
)
def test_what_is_no_requirement_is_dropped_with_its_reason(line: str, reason: str) -> None:
    assert from_requirements(line, where="r.txt") == ((), (f"{line} ({reason})",))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ()),
        ("# all\n\n   \n", ()),
        ("a  # why\n", ("a",)),
        ("a==1\r\nb\r\n", ("a==1", "b")),
        ("\ufeffa", ("a",)),
        ("\ta\t\n", ("a",)),
        ("a\nb\na\n", ("a", "b")),
        ("a>=1, \\\n  <2\nb", ("a>=1, <2", "b")),
        ("a \\\n# no\nb", ("a", "b")),
        ("# no \\\na", ("a",)),
        ("a \\", ("a",)),
        ("\\\n\\\n", ()),
    ],
)
def test_lines_are_read_as_pip_reads_them(text: str, kept: tuple[str, ...]) -> None:
    assert from_requirements(text, where="r.txt") == (kept, ())


def test_options_behind_a_requirement_are_taken_off() -> None:
    text = "a==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nb\n"
    assert from_requirements(text, where="r.txt") == (
        ("a==1", "b"),
        ("--hash=sha256:aa --hash=sha256:bb behind a==1 (an option for this line only)",),
    )


@pytest.mark.parametrize(
    ("text", "number", "line"),
    [
        ("a\n\nb=1\n", 3, "b=1"),
        ("a\nb \\\n  c\n", 2, "b c"),
        ("a\n# b\nnümpy\n", 3, "nümpy"),
        ("pytz>=1.*", 1, "pytz>=1.*"),
        ("a; nonsense", 1, "a; nonsense"),
        ("a\0b", 1, "a\0b"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(text: str, number: int, line: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        from_requirements(text, where="r.txt")
    assert str(raised.value).startswith(f"r.txt line {number}: {line!r} is not a requirement")
