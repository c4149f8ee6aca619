"""Dockerfiles of tasks: the benchmark's own form, what people make of it, and the first line that
cannot be understood.
"""

from __future__ import annotations

import pytest

from minisandbox.build.planning.dockerfile import NotUnderstood, read_dockerfile
from minisandbox.build.planning.shelltext import lines_of
from minisandbox.records.plan import InstancePlan

BASE = "0123456789abcdef0123456789abcdef01234567"
INSTANCE = InstancePlan("one-1", "d", "owner/name", base_commit=BASE)

SYSTEM = """\
FROM --platform=linux/amd64 ubuntu:jammy

ARG DEBIAN_FRONTEND=noninteractive
ENV TZ=Etc/UTC

RUN apt update && apt install -y \\
wget \\
# a comment in between
git libffi-dev \\
&& rm -rf /var/lib/apt/lists/*

# Download and install conda
RUN wget 'https://host/miniconda/Miniconda3-py311_23.11.0-2-Linux-x86_64.sh' -O miniconda.sh \\
    && bash miniconda.sh -b -p /opt/miniconda3
ENV PATH=/opt/miniconda3/bin:$PATH
RUN conda init --all
RUN conda config --append channels conda-forge
RUN adduser --disabled-password --gecos 'dog' nonroot
"""
CLONE = f"""\
RUN <<EOF_2
#!/bin/bash
set -euxo pipefail
git clone -o origin --single-branch https://github.com/owner/name /testbed
chmod -R 777 /testbed
cd /testbed
git reset --hard {BASE}
git remote remove origin
TARGET_TIMESTAMP=$(git show -s --format=%ci {BASE})
git tag -l | while read tag; do TAG=$(git rev-list -n 1 "$tag"); git tag -d "$tag"; done
git reflog expire --expire=now --all
COMMIT_COUNT=$(git log --oneline --all --since="$AFTER_TIMESTAMP" | wc -l)
[ "$COMMIT_COUNT" -eq 0 ] || exit 1
source /opt/miniconda3/bin/activate
conda activate testbed
echo "Current environment: $CONDA_DEFAULT_ENV"
sed -i 's/pytest/pytest -rA/' tox.ini
grep -q x setup.py && sed -i s/x/y/ setup.py || true
apt-get update && apt-get install -y locales
echo 'en_US UTF-8' > /etc/locale.gen
python -m pip install -e .[test]
git config --global user.email setup@swebench.config
git commit --allow-empty -am SWE-bench
EOF_2

WORKDIR /testbed
"""


def environment(*commands: str) -> str:
    lines = ["#!/bin/bash", "set -euxo pipefail", "source /opt/miniconda3/bin/activate"]
    return "RUN <<EOF_1\n" + "\n".join([*lines, *commands]) + "\nEOF_1\n"


def official(*commands: str) -> str:
    return SYSTEM + environment(*commands) + CLONE


def test_packages_by_name() -> None:
    found = read_dockerfile(
        official(
            "conda create -n testbed python=3.9 'numpy<2' cython -y",
            "conda activate testbed",
            "python -m pip install six==1.16.0 pytest",
        ),
        INSTANCE,
    )
    assert (found.python, found.complete) == ("3.9", False)
    assert found.packages == ("cython", "numpy<2")
    assert found.pip_packages == ("six==1.16.0", "pytest")
    assert found.install == (
        "sed -i 's/pytest/pytest -rA/' tox.ini",
        "grep -q x setup.py && sed -i s/x/y/ setup.py || true",
        "python -m pip install -e .[test]",
    )
    assert found.env == {}
    assert found.dropped == (
        "git (for making the image)",
        "wget (for making the image)",
        "locales (locales are part of every environment)",
        "echo 'en_US UTF-8' > /etc/locale.gen (the base is not changed)",
    )
    assert found.system_packages == ("libffi-dev",)


def test_requirements_in_a_file() -> None:
    found = read_dockerfile(
        official(
            "conda create -n testbed python=3.6 -y",
            "cat <<'EOF_598' > $HOME/requirements.txt\nattrs==19.1\n# c\n-e .\npytz\nEOF_598",
            "conda activate testbed && python -m pip install -r $HOME/requirements.txt",
            "rm $HOME/requirements.txt",
        ),
        INSTANCE,
    )
    assert (found.python, found.packages) == ("3.6", ("attrs==19.1", "pytz"))
    assert "-e . (editable" in found.dropped[2]


EXPORT = """\
name: testbed
dependencies:
  - python=3.9.20=he870216_1
  - pip=24.2=py39h06a4308_0
  - pip:
    - attrs==23.1.0
"""


def test_a_pinned_export() -> None:
    found = read_dockerfile(
        official(
            f"cat <<'EOF_598' > /root/environment.yml\n{EXPORT}EOF_598",
            "conda env create -f /root/environment.yml",
            "conda activate testbed",
        ),
        INSTANCE,
    )
    assert (found.python, found.complete) == ("3.9", True)
    assert found.packages == ("attrs==23.1.0", "pip==24.2")


@pytest.mark.parametrize(
    "made",
    [
        ["conda env create --file environment.yml", "conda install python=3.10 -y"],
        ["conda create -c x -n testbed python=3.10 -y", "conda env update -f environment.yml"],
    ],
)
def test_an_environment_of_open_versions(made: list[str]) -> None:
    listing = "dependencies:\n  - numpy>=1.20\n  - pip:\n    - attrs\n"
    found = read_dockerfile(
        official(f"cat <<'EOF_598' > environment.yml\n{listing}EOF_598", *made), INSTANCE
    )
    assert (found.python, found.complete) == ("3.10", False)
    assert found.packages == ("attrs", "numpy>=1.20")


def test_an_image_of_python_s_own() -> None:
    found = read_dockerfile(
        f"""\
ARG VERSION=3.11
FROM python:${{VERSION}}-slim
ENV APP_MODE test
ENV LANG=C.UTF-8 OTHER="a b"
WORKDIR /testbed
RUN ["pip", "install", "--no-cache-dir", "pytest==8.4.2"]
RUN git clone https://github.com/owner/name.git . && git checkout {BASE}
RUN /bin/bash -c "pip install -e . && echo done > built.txt"
CMD ["bash"]
""",
        INSTANCE,
    )
    assert (found.python, found.pip_packages) == ("3.11", ("pytest==8.4.2",))
    assert found.install == ("pip install -e . && echo done > built.txt",)
    assert found.env == {"APP_MODE": "test", "OTHER": "a b"}


def test_line_ends_of_windows() -> None:
    text = official("conda create -n testbed python=3.9 -y").replace("\n", "\r\n")
    assert read_dockerfile(text, INSTANCE).python == "3.9"


PYTHON = "conda create -n testbed python=3.9 -y"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM node:20\n", "line 1: the image 'node:20', whose content is not known"),
        (SYSTEM + "FROM ubuntu:22.04\n", "a second FROM"),
        (SYSTEM + "COPY setup.sh /root/\n", "`COPY setup.sh /root/`"),
        (SYSTEM + "RUN --mount=type=cache,target=/c pip install x\n", "`RUN --mount=type=cache"),
        (official("curl -sSL https://host/install.sh | sh"), "`curl -sSL https://host/install.sh"),
        (official("python -m venv /venv"), "line 23: `python -m venv /venv`"),
        (official(PYTHON, "pip install -r other.txt"), "`pip install -r other.txt`"),
        (official(PYTHON, "pip install --index-url https://h x"), "`pip install --index-url"),
        (official(PYTHON, "conda env create -f gone.yml"), "`conda env create -f gone.yml`"),
        (official("conda create -n testbed -y"), "it names no version of Python"),
        (SYSTEM + environment(PYTHON), "it does not clone owner/name to /testbed"),
        (official(PYTHON).replace("owner/name /testbed", "owner/other /testbed"), "git clone"),
        (official(PYTHON).replace("/testbed\nchmod", "/app\nchmod"), "it clones to /app"),
        (official(PYTHON).replace(f"--hard {BASE}", f"--hard {'f' * 40}"), "checks out ffff"),
        (official(PYTHON) + "RUN git submodule update --init\n", "`git submodule update --init`"),
        (official(PYTHON) + "RUN wget https://host/data.zip\n", "`wget https://host/data.zip`"),
        (official(PYTHON) + "RUN echo 'x\n", "`echo 'x`"),
        ("FROM ubuntu:22.04\n?\n", "line 2: '?' is no instruction"),
    ],
)
def test_the_first_thing_that_is_not_understood_is_named(text: str, said: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        read_dockerfile(text, INSTANCE)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a && b; c", ["a", "b", "c"]),
        ("a 'x && y' \"z; w\"", ["a 'x && y' \"z; w\""]),
        ("a $(b && c) && d", ["a $(b && c)", "d"]),
        ("a \\\n  b\n# c\n\nd", ["a b", "d"]),
        ("for x in 1; do a; done", ["for x in 1; do a; done"]),
        ("a \\; b", ["a \\; b"]),
    ],
)
def test_commands_are_cut_where_a_shell_ends_them(text: str, expected: list[str]) -> None:
    assert [part for line in lines_of(text) for part in line.parts] == expected
