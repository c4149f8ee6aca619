"""Git on the work tree of an instance, without trusting its ``.git``.

Each script makes a throw-away repository whose objects, index and excludes come from the layers
themselves, bound read-only below ``/run``. What was done to ``/testbed/.git`` (commits, ``reset
--hard``, ``gc``, removal) therefore cannot change a diff, and user or system git configuration is
never read.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from minisandbox.errors import MiniSandboxError, PatchFailed
from minisandbox.sandbox import Result, Sandbox

#: Where ``start_instance`` binds the pristine ``.git`` of the source and the instance layer.
BASE = "/run/minisandbox/base"

_MAX_DIFF = 256 * 2**20
_TIMEOUT = 600.0

_PRELUDE = f"""
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE LD_PRELOAD LD_LIBRARY_PATH
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1
command -v git >/dev/null || {{ echo 'there is no git in the sandbox' >&2; exit 97; }}
mkdir -p /var/tmp
scratch=$(mktemp -d /var/tmp/minisandbox.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
git init -q --bare --template= "$scratch/git"
export GIT_DIR="$scratch/git" GIT_WORK_TREE=/testbed
mkdir -p "$GIT_DIR/info" "$GIT_DIR/objects/info"
for part in source instance; do
  [ -d {BASE}/$part/objects ] && echo {BASE}/$part/objects >> "$GIT_DIR/objects/info/alternates"
  [ -f {BASE}/$part/info/exclude ] && cp {BASE}/$part/info/exclude "$GIT_DIR/info/exclude"
  [ -f {BASE}/$part/index ] && cp {BASE}/$part/index "$GIT_DIR/index"
done
git config core.bare false
git config core.trustctime false
git config core.checkStat minimal
git config core.autocrlf false
git config core.hooksPath /dev/null
cd /testbed
"""


def diff(sandbox: Sandbox, head_tree: str) -> bytes:
    """Changes since ``head_tree`` as a binary-safe patch."""
    result = _git(
        sandbox,
        f"git add -A -- . >&2\n"
        "git diff --cached --binary --full-index --no-color --no-ext-diff --no-textconv "
        f"{shlex.quote(head_tree)}\n",
        max_output=_MAX_DIFF,
    )
    if result.exit_code != 0 or result.truncated:
        reason = f"more than {_MAX_DIFF} bytes" if result.truncated else _tail(result)
        raise MiniSandboxError(f"cannot tell the changes of {sandbox.name}: {reason}")
    return result.stdout


def apply_patch(sandbox: Sandbox, patch: str, *, name: str) -> None:
    """``git apply``, then ``patch`` with the fuzz the official harness allows; nothing is changed
    on failure.
    """
    if not patch.endswith("\n"):
        patch += "\n"
    script = """
cat > "$scratch/patch"
git apply --whitespace=nowarn "$scratch/patch" 2> "$scratch/why" && exit 0
if command -v patch >/dev/null; then
  if patch --dry-run --batch --forward --fuzz=5 -p1 -i "$scratch/patch" >/dev/null 2>&1; then
    exec patch --batch --forward --fuzz=5 --no-backup-if-mismatch -p1 -i "$scratch/patch" >&2
  fi
fi
if git apply --whitespace=nowarn --reverse --check "$scratch/patch" 2>/dev/null; then
  echo 'it is applied already' >&2
fi
cat "$scratch/why" >&2
exit 1
"""
    result = _git(sandbox, script, stdin=patch.encode("utf-8", "surrogateescape"))
    if result.exit_code != 0:
        raise PatchFailed(name, _tail(result))


def restore(sandbox: Sandbox, head_tree: str, paths: Sequence[str]) -> None:
    """Put ``paths`` back to ``head_tree``; what it does not hold is removed."""
    if not paths:
        return
    script = f"""
git read-tree {shlex.quote(head_tree)}
while IFS= read -r -d '' path; do
  if git ls-files --error-unmatch -- ":(literal)$path" >/dev/null 2>&1; then
    git checkout-index -f -q -- "$path"
  else
    rm -rf -- "./$path"
  fi
done
"""
    listing = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    result = _git(sandbox, script, stdin=listing)
    if result.exit_code != 0:
        raise MiniSandboxError(f"cannot restore files of {sandbox.name}: {_tail(result)}")


def _git(
    sandbox: Sandbox, script: str, *, stdin: bytes | None = None, max_output: int = 2**20
) -> Result:
    return sandbox.run(
        ["/bin/bash", "-c", _PRELUDE + script],
        stdin=stdin,
        cwd="/",
        timeout=_TIMEOUT,
        max_output=max_output,
        user=0,
    )


def _tail(result: Result) -> str:
    if result.timed_out:
        return f"git took more than {_TIMEOUT:.0f} s"
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return "; ".join(lines[:3]) or f"git ended with {result.exit_code}"
