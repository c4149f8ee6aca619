"""Copy the running CPython to another prefix. Runs *inside* a sandbox, by the interpreter that is
copied.

Standard library only, and valid for Python 3.6 and later. Arguments: the new prefix, and the prefix
that the files speak of on the host. Leaves out what Debian leaves out of its own packages too (the
test suite but for ``test.support``, static libraries), other people's site-packages, and byte-code.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import Dict, Iterable, List, Set, Tuple

VERSION = "{}.{}".format(*sys.version_info[:2])
SKIPPED = {
    "__pycache__",
    "site-packages",
    "dist-packages",
    "idle_test",
    "turtledemo",
    "EXTERNALLY-MANAGED",
}
KEPT_TESTS = {"__init__.py", "support", "libregrtest"}
#: The C library and the compiler's: the kernel's loader takes the base's, and others must be no
#: newer or older than that.
OF_BASE = re.compile(
    r"(ld-linux|libc\.so|libm\.so|libmvec\.so|libpthread|libdl\.so|librt\.so|libutil\.so|libresolv"
    r"|libanl|libgcc_s|libstdc\+\+|linux-vdso)"
)


def ignore(folder: str, names: List[str]) -> List[str]:
    """What of a directory of the installation stays behind."""
    skipped = [
        n
        for n in names
        if n in SKIPPED or n.endswith((".pyc", ".a")) or n.startswith("sitecustomize")
    ]
    if os.path.basename(folder) == "test" and os.path.basename(os.path.dirname(folder)).startswith(
        "python"
    ):
        skipped += [n for n in names if n not in KEPT_TESTS]
    return skipped


def merge(source: str, target: str) -> None:
    """``shutil.copytree`` into a directory that may exist (its ``dirs_exist_ok`` is of
    Python 3.8).
    """
    os.makedirs(target, exist_ok=True)
    names = os.listdir(source)
    left_out = set(ignore(source, names))
    for name in sorted(names):
        origin, copy = os.path.join(source, name), os.path.join(target, name)
        if name in left_out or not os.path.exists(origin):
            continue
        if os.path.isdir(origin):
            merge(origin, copy)
        else:
            shutil.copy2(origin, copy)


def linked_libraries(binaries: Iterable[str]) -> List[Tuple[str, str]]:
    """Shared libraries that the binaries load, as ``(name, path)``, those of libraries included,
    but for what every base has.
    """
    found: Dict[str, str] = {}
    for binary in binaries:
        done = subprocess.Popen(["ldd", binary], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in done.communicate()[0].decode("utf-8", "replace").splitlines():
            match = re.match(r"\s*(\S+) => (/\S+) ", line)
            if match and not OF_BASE.match(match.group(1)):
                found[match.group(1)] = match.group(2)
    return sorted(found.items())


def extensions(folder: str) -> List[str]:
    """Extension modules in a directory."""
    if not os.path.isdir(folder):
        return []
    return [
        os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".so")
    ]


def rewrite(root: str, old: str, new: str) -> None:
    """Put the new prefix where build-time files name the old one."""
    for folder, _, names in os.walk(root):
        for name in names:
            if not (
                name.startswith("_sysconfigdata") or name == "Makefile" or name.endswith(".pc")
            ):
                continue
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                text = file.read()
            changed = re.sub(re.escape(old.encode()) + rb"(?![\w.-])", new.encode(), text)
            if changed != text:
                with open(path, "wb") as file:
                    file.write(changed)


def find_own_libraries(new: str, names: Set[str], old: str) -> None:
    """Let a binary that needs one of the copied libraries look for it beside itself.

    Without this a copy whose library is not found may run with the system's: another Python,
    silently.
    """
    folders = [new + "/bin", new + "/lib", new + "/lib/python" + VERSION + "/lib-dynload"]
    for folder in folders:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            path = os.path.join(folder, name)
            if os.path.islink(path) or not os.path.isfile(path) or not is_elf(path):
                continue
            needed = asked("--print-needed", path).split()
            if names & set(needed) or old + "/" in asked("--print-rpath", path):
                origin = "$ORIGIN/" + os.path.relpath(new + "/lib", folder)
                subprocess.check_call(["patchelf", "--set-rpath", origin, path])


def asked(question: str, path: str) -> str:
    """What patchelf answers of a binary."""
    return subprocess.check_output(["patchelf", question, path]).decode().strip()


def is_elf(path: str) -> bool:
    """Whether a file is a program or a shared library."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def main() -> None:
    """Copy executable, standard library, headers, and the libraries that any of them loads."""
    new, old = sys.argv[1], sys.argv[2]
    prefix = os.path.realpath(sys.base_prefix)
    stdlib = sysconfig.get_path("stdlib")
    platform = sysconfig.get_path("platstdlib")
    include = sysconfig.get_path("include")
    os.makedirs(new + "/bin")
    executable = new + "/bin/python" + VERSION
    shutil.copy2(os.path.realpath(sys.executable), executable)
    os.symlink("python" + VERSION, new + "/bin/python3")
    os.symlink("python" + VERSION, new + "/bin/python")
    merge(stdlib, new + "/lib/python" + VERSION)
    if os.path.realpath(platform) != os.path.realpath(stdlib):
        merge(platform, "/".join([new, getattr(sys, "platlibdir", "lib"), "python" + VERSION]))
    os.makedirs(new + "/lib/python" + VERSION + "/site-packages", exist_ok=True)
    if include and os.path.isdir(include):
        # By its own name: up to Python 3.7 that has a letter more than the version (python3.6m).
        merge(include, new + "/include/" + os.path.basename(include))
    binaries = [
        os.path.realpath(sys.executable),
        *extensions(os.path.join(platform, "lib-dynload")),
    ]
    libraries = linked_libraries(binaries)
    for name, path in libraries:
        shutil.copyfile(os.path.realpath(path), new + "/lib/" + name)
        os.chmod(new + "/lib/" + name, 0o755)
    if prefix not in ("/usr", "/"):
        # Up to Python 3.7 extensions are linked with it, by the name without a version.
        plain, versioned = map(sysconfig.get_config_var, ("LDLIBRARY", "INSTSONAME"))
        if plain and plain != versioned and os.path.isfile(new + "/lib/" + versioned):
            os.symlink(versioned, new + "/lib/" + plain)
        for name in os.listdir(prefix + "/lib"):
            if re.match(r"(tcl|tk)\d", name):
                merge(prefix + "/lib/" + name, new + "/lib/" + name)
    if old not in ("/usr", "/"):
        rewrite(new, old, new)
    find_own_libraries(new, {name for name, _ in libraries}, old)


if __name__ == "__main__":
    main()
