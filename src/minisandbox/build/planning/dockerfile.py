"""The Dockerfile of a task as an environment to build, where all that it does is understood.

Understood is the form in which the benchmark writes them (a conda environment ``testbed``, or an
image of Python's own; packages by conda and pip; the repository cloned to ``/testbed``; commands
that install it there) and what people make of that. Invariant: each line is used, left out for a
reason that is known here, or the first that is neither is named.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from minisandbox.build.planning import conda, debian
from minisandbox.build.planning.shelltext import Line, lines_of
from minisandbox.errors import InvalidInput
from minisandbox.records.plan import InstancePlan

TESTBED = "/testbed"


class NotUnderstood(ValueError):
    """What of a Dockerfile cannot be understood: the text names line and command."""


@dataclass(frozen=True)
class DockerEnvironment:
    """What a Dockerfile says of an environment; ``install`` are commands in the repository."""

    python: str
    packages: tuple[str, ...]
    complete: bool
    pip_packages: tuple[str, ...]
    install: tuple[str, ...]
    env: Mapping[str, str]
    dropped: tuple[str, ...]
    system_packages: tuple[str, ...]


class _Instruction(NamedTuple):
    name: str
    argument: str
    line: int
    script: str | None


_INSTRUCTION = re.compile(r"\s*(?P<name>[A-Za-z]+)\s+(?P<argument>.*)", re.DOTALL)
_HEREDOC = re.compile(r"^(?P<shell>(?:/bin/)?(?:ba)?sh )?\s*<<-?\s*(['\"]?)(?P<end>\w+)\2\s*$")
_PYTHON_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?python:(?P<minor>\d+\.\d+)(?:[.-].*)?")
_SYSTEM_IMAGE = re.compile(
    r"(?:docker\.io/)?(?:library/)?(?:ubuntu|debian|buildpack-deps)(?::.*)?"
    r"|continuumio/(?:mini|ana)conda3(?::.*)?|condaforge/(?:mini|mamba)forge3?(?::.*)?"
)
_PYTHON_SPEC = re.compile(r"python={1,2}(?P<minor>\d+\.\d+)(?:\.\d+|\.\*)?")

#: Characters of an instruction with its variables filled in: each may name the one before twice.
_LONGEST = 2**18

#: Instructions that say nothing of what is installed.
_NO_MATTER = frozenset({"SHELL", "USER", "LABEL", "CMD", "ENTRYPOINT", "EXPOSE"})
#: Variables of the image itself; every environment of ours has places and locales of its own.
_OF_THE_IMAGE = re.compile(r"PATH|TZ|DEBIAN_FRONTEND|LANG|LANGUAGE|LC_\w+|CONDA_\w+|HOME|SHELL")
#: Programs that prepare the image as a whole, and words for the shell that runs the commands.
_OF_THE_SYSTEM = frozenset(
    {"set", "source", ".", "true", ":", "hash", "locale-gen", "dpkg-reconfigure"}
    | {"adduser", "useradd", "groupadd", "update-ca-certificates"}
)
#: Programs that, before there is a repository, only move files of the image.
_OF_FILES = frozenset({"echo", "chmod", "chown", "mkdir", "ln", "rm", "mv", "cd", "export"})
_SYSTEM_PACKAGES = frozenset({"apt", "apt-get"})
#: Packages by which an image gets what every instance has, or that only its making needs.
_OF_THE_IMAGE_ALONE = frozenset(
    {"wget", "curl", "ca-certificates", "git", "jq", "tzdata", "locales-all"}
    | {"python3", "python3-pip", "python-is-python3"}
)
_CONDA = frozenset({"conda", "mamba", "micromamba"})
_REACHES_OUT = frozenset({"curl", "wget"})
_CONDA_NO_MATTER = frozenset({"init", "config", "activate", "clean", "info", "deactivate"})
#: By which the benchmark removes what is newer than the base commit; our checkouts never have it.
_HISTORY = re.compile(r"(?:TARGET_TIMESTAMP|AFTER_TIMESTAMP|COMMIT_COUNT)=|\[ \"\$COMMIT_COUNT\"")
_GIT_REACHES_OUT = frozenset({"submodule", "lfs", "pull", "subtree"})
_WRITTEN = re.compile(r"cat\s*>\s*(?P<quote>[\"']?)(?P<file>[^\s\"']+)(?P=quote)")
_CONDA_INSTALLER = re.compile(r"mini(?:conda|forge)", re.IGNORECASE)
#: Options of pip that change nothing here.
_PIP_NO_MATTER = frozenset(
    {"-U", "--upgrade", "-q", "-qq", "--quiet", "-v", "--verbose", "--no-cache-dir", "--system"}
    | {"--disable-pip-version-check", "--no-input", "--root-user-action=ignore", "--user"}
)


def read_dockerfile(text: str, instance: InstancePlan) -> DockerEnvironment:
    """The environment of a task's Dockerfile; raises ``NotUnderstood``."""
    reader = _Reader(instance)
    for instruction in _instructions(text):
        reader.take(instruction)
    try:
        return reader.environment()
    except InvalidInput as error:
        raise NotUnderstood(f"{error.where}: {error.problem}") from None


def _instructions(text: str) -> Iterator[_Instruction]:
    lines = iter(enumerate(text.replace("\r\n", "\n").split("\n"), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while line.rstrip().endswith("\\"):
            following = next(lines, (0, ""))[1]
            if following.lstrip().startswith("#"):  # a comment inside of a line that goes on
                continue
            line = line.rstrip()[:-1].rstrip() + " " + following.strip()
        found = _INSTRUCTION.fullmatch(line)
        if found is None:
            raise NotUnderstood(f"line {number}: {line.strip()[:80]!r} is no instruction")
        name, argument = found["name"].upper(), found["argument"].strip()
        script: str | None = None
        if name == "RUN" and (opened := _HEREDOC.fullmatch(argument)) is not None:
            content: list[str] = []
            for _, inner in lines:
                if inner.strip() == opened["end"]:
                    break
                content.append(inner)
            script = "\n".join(content)
        yield _Instruction(name, argument, number, script)


class _Command(NamedTuple):
    """One command, the line that it is on, and the text of its heredoc."""

    text: str
    line: int
    stdin: str | None = None


@dataclass
class _Reader:
    """What has been read so far."""

    instance: InstancePlan
    python: str = ""
    image: str = ""
    variables: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    conda_words: list[str] = field(default_factory=list[str])
    conda_file: str = ""
    requirements: list[str] = field(default_factory=list[str])
    pip: list[str] = field(default_factory=list[str])
    install: list[str] = field(default_factory=list[str])
    dropped: list[str] = field(default_factory=list[str])
    system_packages: set[str] = field(default_factory=set[str])
    cloned: bool = False
    folder: str = "/"

    def take(self, instruction: _Instruction) -> None:
        name, argument = instruction.name, self._filled(instruction.argument)
        line = f"line {instruction.line}"
        if name == "FROM":
            self._from(argument, line)
        elif name == "WORKDIR":
            self.folder = posixpath.join(self.folder, argument)
        elif name in ("ARG", "ENV"):
            self._set(argument, line, lasting=name == "ENV")
        elif name == "RUN":
            script, first = self._script(instruction, argument)
            for line_of_shell in lines_of(script, first=first):
                self._line(line_of_shell)
        elif name not in _NO_MATTER:
            raise NotUnderstood(f"{line}: `{name} {argument[:60]}`")

    def environment(self) -> DockerEnvironment:
        """All of it; raises ``NotUnderstood`` or ``InvalidInput``."""
        if not self.cloned:
            raise NotUnderstood(f"it does not clone {self.instance.repo} to {TESTBED}")
        where = "its Dockerfile"
        if self.conda_file and _is_export(self.conda_file):
            found = conda.from_export(self.conda_file, where=where)
        else:
            if not self.python:
                raise NotUnderstood("it names no version of Python")
            words = shlex.join(self.conda_words)
            found = conda.from_packages(words, python=self.python, where=where)
            if self.conda_file:
                listed = conda.from_environment_yml(
                    self.conda_file, python=self.python, where=where
                )
                found = conda.PipEnvironment(
                    listed.python,
                    "",
                    (*listed.requirements, *found.requirements),
                    complete=False,
                    dropped=(*listed.dropped, *found.dropped),
                )
        later: list[str] = list(self.pip)
        packages = list(found.requirements)
        # What is complete is installed without dependencies; what comes after it is not.
        (later if found.complete else packages)[:0] = self.requirements
        return DockerEnvironment(
            python=found.python,
            packages=tuple(packages),
            complete=found.complete,
            pip_packages=tuple(later),
            install=tuple(self.install),
            env=self.env,
            dropped=(*found.dropped, *self.dropped),
            system_packages=tuple(sorted(self.system_packages)),
        )

    def _filled(self, text: str) -> str:
        for name, value in self.variables.items():
            text = re.sub(rf"\$(?:{name}\b|\{{{name}\}})", lambda _, value=value: value, text)
            if len(text) > _LONGEST:
                raise NotUnderstood(f"its variables make more than {_LONGEST} characters of a line")
        return text

    def _from(self, argument: str, line: str) -> None:
        words = [word for word in argument.split() if not word.startswith("--")]
        if self.image:
            raise NotUnderstood(f"{line}: a second FROM")
        self.image = words[0] if words else ""
        if (python := _PYTHON_IMAGE.fullmatch(self.image)) is not None:
            self.python = python["minor"]
        elif not _SYSTEM_IMAGE.fullmatch(self.image):
            raise NotUnderstood(f"{line}: the image {self.image!r}, whose content is not known")

    def _set(self, argument: str, line: str, *, lasting: bool) -> None:
        try:
            words = shlex.split(argument)
        except ValueError as error:
            raise NotUnderstood(f"{line}: {error}") from None
        if words and "=" not in words[0] and lasting:
            words = [f"{words[0]}={' '.join(words[1:])}"]
        for word in words:
            name, _, value = word.partition("=")
            if re.fullmatch(r"[A-Za-z_]\w*", name):
                self.variables[name] = value
                if lasting and not _OF_THE_IMAGE.fullmatch(name):
                    self.env[name] = value

    def _script(self, instruction: _Instruction, argument: str) -> tuple[str, int]:
        if instruction.script is not None:
            return self._filled(instruction.script), instruction.line + 1
        if argument.startswith("["):
            try:
                words: Any = json.loads(argument)
            except (ValueError, RecursionError):
                raise NotUnderstood(f"line {instruction.line}: `RUN {argument[:60]}`") from None
            argument = shlex.join(map(str, cast("Sequence[object]", words)))
        if argument.startswith("--"):
            raise NotUnderstood(f"line {instruction.line}: `RUN {argument[:60]}`")
        return argument, instruction.line

    def _line(self, line: Line) -> None:
        """Command by command; but what installs the repository stays together, for what comes after
        ``&&`` depends on what comes before.
        """
        if self.cloned and line.stdin is None and all(map(_is_of_the_install, line.parts)):
            self._install(line.text)
            return
        for part in line.parts:
            self._command(_Command(part, line.number, line.stdin if len(line.parts) == 1 else None))

    def _install(self, text: str) -> None:
        parts = debian.take_apart([text])
        self.install += parts.kept
        self.dropped += parts.dropped

    def _command(self, command: _Command) -> None:
        text = command.text
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise _unknown(command) from error
        if not words:
            return
        program = _program(words)
        if program in ("bash", "sh") and len(words) == 3 and re.fullmatch(r"-l?c", words[1]):
            for line in lines_of(words[2], first=command.line):
                self._line(line)
        elif command.stdin is not None:
            self._write_file(command)
        elif program in _SYSTEM_PACKAGES:
            if "install" in words:
                self._system(text)
        elif program in _CONDA:
            self._conda(command, words[1:])
        elif program == "git":
            self._git(command, words[1:])
        elif program in _OF_THE_SYSTEM or _HISTORY.match(text):
            return
        elif not self.cloned or program in _REACHES_OUT:
            self._before_the_clone(command, program, words)
        elif not _is_idle(program, words):
            self._install(text)

    def _system(self, text: str) -> None:
        parts = debian.take_apart([text])
        for name in parts.packages:
            if name in _OF_THE_IMAGE_ALONE:
                self.dropped.append(f"{name} (for making the image)")
            else:
                self.system_packages.add(name)
        self.dropped += parts.dropped

    def _write_file(self, command: _Command) -> None:
        written = _WRITTEN.fullmatch(command.text)
        if written is None or command.stdin is None:
            raise _unknown(command)
        self.files[_place(written["file"])] = command.stdin

    def _before_the_clone(self, command: _Command, program: str, words: Sequence[str]) -> None:
        if (pip := _pip_arguments(words)) is not None:
            self._pip(command, pip)
        elif program == "sed" and any(word.startswith(("/root/", "/etc/")) for word in words[1:]):
            return
        elif program not in _OF_FILES and not _CONDA_INSTALLER.search(command.text):
            raise _unknown(command)

    def _conda(self, command: _Command, words: Sequence[str]) -> None:
        if not words or words[0] in _CONDA_NO_MATTER:
            return
        action = words[:2] if words[0] == "env" else words[:1]
        if tuple(action) not in (("create",), ("install",), ("env", "create"), ("env", "update")):
            raise _unknown(command)
        arguments = iter(words[len(action) :])
        for word in arguments:
            if word in ("-n", "--name", "-c", "--channel"):
                next(arguments, None)
            elif word in ("-f", "--file"):
                name = _place(next(arguments, ""))
                if name not in self.files:
                    raise _unknown(command)
                self.conda_file = self.files[name]
                found = _PYTHON_SPEC.search(re.sub(r"\s*(=+)\s*", r"\1", self.conda_file))
                self.python = self.python or (found["minor"] if found else "")
            elif (python := _PYTHON_SPEC.fullmatch(word)) is not None:
                self.python = python["minor"]
            elif not word.startswith("-"):
                self.conda_words.append(word)
            elif word not in ("-y", "--yes", "-q", "--quiet", "--override-channels"):
                raise _unknown(command)

    def _pip(self, command: _Command, words: Sequence[str]) -> None:
        arguments = iter(words)
        for word in arguments:
            if word in ("-r", "--requirement"):
                name = _place(next(arguments, ""))
                if name not in self.files:
                    raise _unknown(command)
                kept, lost = conda.from_requirements(self.files[name], where=f"its {name}")
                self.requirements += kept
                self.dropped += lost
            elif word in _PIP_NO_MATTER:
                continue
            elif word.startswith(("-", ".", "/")):
                raise _unknown(command)
            elif word != "pip":  # every environment has one
                self.pip.append(word)

    def _git(self, command: _Command, words: Sequence[str]) -> None:
        if words[:1] == ["clone"]:
            addresses = [word for word in words if "://" in word or word.startswith("git@")]
            repo = re.escape(self.instance.repo)
            if not addresses or not re.search(rf"[:/]{repo}(?:\.git)?/?$", addresses[0], re.I):
                raise _unknown(command)
            after = [*words[words.index(addresses[0]) + 1 :], addresses[0].rpartition("/")[2]]
            target = posixpath.normpath(posixpath.join(self.folder, after[0].removesuffix(".git")))
            if target != TESTBED:
                raise NotUnderstood(
                    f"line {command.line}: it clones to {target}, and only {TESTBED} is built"
                )
            self.cloned = True
        elif words and words[0] in _GIT_REACHES_OUT:
            raise _unknown(command)
        elif words[:1] in (["reset"], ["checkout"]):
            commits = [word for word in words if re.fullmatch(r"[0-9a-f]{7,40}", word)]
            if any(not _same_commit(commit, self.instance.base_commit) for commit in commits):
                raise NotUnderstood(
                    f"line {command.line}: it checks out {commits[0][:12]}, which is not the "
                    "row's base_commit"
                )


def _program(words: Sequence[str]) -> str:
    return words[0].rpartition("/")[2]


def _is_of_the_install(text: str) -> bool:
    """Whether a command in the repository is one of those that install it, and nothing else."""
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    if not words or _HISTORY.match(text):
        return False
    program = _program(words)
    other = _SYSTEM_PACKAGES | _CONDA | _OF_THE_SYSTEM | _REACHES_OUT | {"git", "bash", "sh"}
    return program not in other and not _is_idle(program, words)


def _is_idle(program: str, words: Sequence[str]) -> bool:
    """Whether a command in the repository does nothing that an install needs."""
    if program == "echo":
        return not any(word.startswith(">") for word in words)
    opens = program in ("chmod", "chown") and words[-1].rstrip("/") == TESTBED
    return opens or list(words) == ["cd", TESTBED]


def _unknown(command: _Command) -> NotUnderstood:
    return NotUnderstood(f"line {command.line}: `{command.text[:80]}`")


def _same_commit(first: str, second: str) -> bool:
    return first.startswith(second) or second.startswith(first)


def _place(name: str) -> str:
    """A file as commands of one image name it, from wherever they run."""
    name = re.sub(r"^(?:\$HOME|\$\{HOME\}|~)/", "/root/", name)
    return name if name.startswith("/") else f"/{name.removeprefix('./')}"


def _pip_arguments(words: Sequence[str]) -> Sequence[str] | None:
    """What stands after ``pip install``; ``None`` for another command."""
    for start in (
        ["pip"],
        ["pip3"],
        ["uv", "pip"],
        ["python", "-m", "pip"],
        ["python3", "-m", "pip"],
    ):
        if list(words[: len(start) + 1]) == [*start, "install"]:
            return words[len(start) + 1 :]
    return None


def _is_export(text: str) -> bool:
    """Whether a conda file pins builds, as ``conda env export`` writes it."""
    return re.search(r"^\s*- python=[\d.]+=\S+\s*$", text, re.MULTILINE) is not None
