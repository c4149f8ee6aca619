"""Git on the work tree of an instance, without trusting its ``.git``.

Each script makes a throw-away repository whose objects and excludes come from the layers
themselves, bound read-only below ``/run``. What was done to ``/testbed/.git`` (commits, ``reset
--hard``, ``gc``, removal) therefore cannot change a diff, and user or system git configuration is
never read. Content is compared, never times and sizes, which whoever edits a file can put back.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from minisandbox.errors import InvalidInput, MiniSandboxError, PatchFailed
from minisandbox.runtime.patchnames import is_for_git_alone
from minisandbox.sandbox import Result, Sandbox, arguments

#: Where ``start_instance`` binds the pristine ``.git`` of the source and the instance layer.
BASE = "/run/minisandbox/base"

_MAX_DIFF = 256 * 2**20
_TIMEOUT = 600.0

# The C locale, because in UTF-8 bash's `read -d ''` takes the NUL after half a character into the
# name before it.
_PRELUDE = f"""
set -eu
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE LD_PRELOAD LD_LIBRARY_PATH
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1
command -v git >/dev/null || {{ echo 'there is no git in the sandbox' >&2; exit 97; }}
mkdir -p /var/tmp
scratch=$(mktemp -d /var/tmp/minisandbox.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
git init -q --bare --template= "$scratch/git"
export GIT_DIR="$scratch/git" GIT_WORK_TREE=/testbed
mkdir -p "$GIT_DIR/info" "$GIT_DIR/objects/info" "$scratch/tree"
for part in source instance; do
  [ -d {BASE}/$part/objects ] && echo {BASE}/$part/objects >> "$GIT_DIR/objects/info/alternates"
  [ -f {BASE}/$part/info/exclude ] && cp {BASE}/$part/info/exclude "$GIT_DIR/info/exclude"
done
git config core.bare false
git config core.fileMode true
git config core.symlinks true
git config core.ignoreCase false
git config core.autocrlf false
git config core.safecrlf false
git config core.protectNTFS false
git config core.protectHFS false
git config core.looseCompression 0
git config core.hooksPath /dev/null
[ -L /testbed ] && {{ echo '/testbed is a link now' >&2; exit 98; }}
[ -e /testbed ] || mkdir /testbed
cd /testbed
"""

# The index, from the recorded tree, becomes what lies in /testbed, in two steps. The first takes
# bytes as they are: `info/attributes` overrules every .gitattributes. Line ends and encodings that
# the checkout converted are then undone for the files that differ, in a directory that has no
# .gitattributes but where git finds those of the recorded tree in the index: the ones in /testbed
# may have been edited, and would convert every file of the project.
#
# Nested repositories are plain files here: `git add` would record a commit instead of content. The
# directory of a submodule stays what was recorded.
_STAGE = r"""
raw='* -text !eol -ident !filter !working-tree-encoding !diff'
echo "$raw" > "$GIT_DIR/info/attributes"
export GIT_INDEX_FILE="$scratch/index"
git read-tree "$tree"
git update-index -q --refresh >/dev/null || :
git diff-files -z --name-status --ignore-submodules=all > "$scratch/differing"
while IFS= read -r -d '' status && IFS= read -r -d '' path; do
  if [ "$status" != D ] && { [ -L "$path" ] || [ -f "$path" ]; }; then
    printf '%s\0' "$path" >&3
  else
    printf '%s\0' "$path" >&4
  fi
done < "$scratch/differing" 3> "$scratch/present" 4> "$scratch/gone"
git update-index --force-remove -z --stdin < "$scratch/gone"

git ls-files -z --others --exclude-standard > "$scratch/others"
while IFS= read -r -d '' path; do
  case $path in
    */) find "./$path" -name .git -prune -o '(' -type f -o -type l ')' -print0 >&4 ;;
    *) printf '%s\0' "$path" >&3 ;;
  esac
done < "$scratch/others" 3>> "$scratch/present" 4> "$scratch/nested"
if [ -s "$scratch/nested" ]; then
  git check-ignore --no-index -v -n -z --stdin < "$scratch/nested" > "$scratch/ignored" || :
  while IFS= read -r -d '' _ && IFS= read -r -d '' _ && IFS= read -r -d '' pattern &&
      IFS= read -r -d '' path; do
    case $pattern in '' | '!'*) printf '%s\0' "${path#./}" ;; esac
  done < "$scratch/ignored" >> "$scratch/present"
fi
while IFS= read -r -d '' path; do
  # Git takes no path with such a part, in any case of letters.
  case /${path,,}/ in */.git/*) ;; *) printf '%s\0' "$path" ;; esac
done < "$scratch/present" > "$scratch/list"
git update-index --add --replace -z --stdin < "$scratch/list"

attributes=':(glob)**/.gitattributes'
convert() {
  git update-index --add --replace -z --stdin
}
ordinary() {
  while IFS= read -r -d '' path; do
    case /$path in */.gitattributes) ;; *) printf '%s\0' "$path" ;; esac
  done
}
if [ -n "$(git ls-tree -r --name-only "$tree" | grep -E '(^|/)\.gitattributes$')" ]; then
  ordinary < "$scratch/list" > "$scratch/files"
  git ls-files -s -z -- "$attributes" > "$scratch/entries"
  git checkout-index -q -z --stdin --prefix="$scratch/tree/" < "$scratch/files"
  rm "$GIT_DIR/info/attributes"
  export GIT_INDEX_FILE="$scratch/converted" GIT_WORK_TREE="$scratch/tree"
  cd "$scratch/tree"
  git read-tree "$tree"
  ordinary < "$scratch/gone" | git update-index --force-remove -z --stdin
  if ! convert < "$scratch/files" 2>/dev/null; then
    # One does not have the encoding that the project declares: it is told as it is.
    while IFS= read -r -d '' path; do
      printf '%s\0' "$path" | convert 2>/dev/null ||
        GIT_INDEX_FILE="$scratch/index" git ls-files -s -z -- ":(literal)$path" >&3
    done < "$scratch/files" 3>> "$scratch/entries"
  fi
  git ls-files -z -- "$attributes" | git update-index --force-remove -z --stdin
  git update-index --add --replace -z --index-info < "$scratch/entries"
  echo "$raw" > "$GIT_DIR/info/attributes"
fi
"""


def diff(sandbox: Sandbox, head_tree: str) -> bytes:
    """Changes since ``head_tree`` as a binary-safe patch."""
    # Between trees and without an index: git would else read files of the work tree that it takes
    # for the same as objects, unconverted.
    result = _git(
        sandbox,
        f"tree={shlex.quote(head_tree)}\n{_STAGE}"
        "changed=$(git write-tree)\n"
        'GIT_INDEX_FILE="$scratch/none" git diff-tree -r -p -M --binary --full-index --no-color '
        '--no-ext-diff --no-textconv --ignore-submodules=none "$tree" "$changed"\n',
        max_output=_MAX_DIFF,
    )
    if result.exit_code != 0 or result.truncated:
        reason = f"more than {_MAX_DIFF} bytes" if result.truncated else _tail(result)
        raise MiniSandboxError(f"cannot tell the changes of {sandbox.name}: {reason}")
    return result.stdout


_BY_GIT = """
cat > "$scratch/patch"
git apply --whitespace=nowarn "$scratch/patch" 2> "$scratch/why" && exit 0
"""
# What git refuses for where it would write, `patch` must not be asked to do.
_BY_PATCH = """
if command -v patch >/dev/null && ! grep -qE 'invalid path|symbolic link' "$scratch/why"; then
  if patch --dry-run --batch --forward --fuzz=5 -p1 -i "$scratch/patch" >/dev/null 2>&1; then
    patch --batch --forward --fuzz=5 --no-backup-if-mismatch -p1 -i "$scratch/patch" >&2
    exit
  fi
fi
"""
_REFUSED = """
if git apply --whitespace=nowarn --reverse --check "$scratch/patch" 2>/dev/null; then
  echo 'it is applied already' >&2
fi
cat "$scratch/why" >&2
exit 1
"""


def apply_patch(sandbox: Sandbox, patch: str, *, name: str) -> None:
    """``git apply``, then ``patch`` with the fuzz the official harness allows; nothing is changed
    on failure.
    """
    remedy = "give a string, which bytes are after decode('utf-8', 'surrogateescape')"
    content = arguments.encoded("patch", patch, remedy=remedy)
    if not content.endswith(b"\n"):
        content += b"\n"
    by_patch = "" if is_for_git_alone(patch) else _BY_PATCH
    result = _git(sandbox, _BY_GIT + by_patch + _REFUSED, stdin=content)
    if result.exit_code != 0:
        raise PatchFailed(name, _tail(result))


# Files are made beside the tree, where the attributes of the recorded tree hold, and moved into
# place behind directories that are no links.
_RESTORE = r"""
git read-tree "$tree"
has_links() {
  local rest=$1 way=.
  while [ "$rest" != "${rest#*/}" ]; do
    way=$way/${rest%%/*} rest=${rest#*/}
    if [ -L "$way" ]; then return 0; fi
  done
  return 1
}
make_way() {
  local rest=$1 way=.
  while [ "$rest" != "${rest#*/}" ]; do
    way=$way/${rest%%/*} rest=${rest#*/}
    if [ -L "$way" ] || [ ! -d "$way" ]; then rm -f -- "$way"; mkdir -- "$way"; fi
  done
}
while IFS= read -r -d '' path; do
  git ls-files -z -- ":(top,literal)$path" > "$scratch/files"
  if [ -s "$scratch/files" ]; then
    cat "$scratch/files" >> "$scratch/recorded"
  elif ! has_links "$path"; then
    rm -rf -- "./$path"
  fi
done
[ -s "$scratch/recorded" ] || exit 0
(
  export GIT_WORK_TREE="$scratch/tree"
  cd "$scratch/tree"
  git checkout-index -f -q -z --stdin < "$scratch/recorded"
)
while IFS= read -r -d '' path; do
  [ -L "$scratch/tree/$path" ] || [ -f "$scratch/tree/$path" ] || continue
  make_way "$path"
  rm -rf -- "./$path"
  mv -- "$scratch/tree/$path" "./$path"
done < "$scratch/recorded"
"""


def restore(sandbox: Sandbox, head_tree: str, paths: Sequence[str]) -> None:
    """Put ``paths`` back to ``head_tree``; what it does not hold is removed.

    Raises ``InvalidInput`` for a path that is not one of the work tree.
    """
    names = arguments.texts("paths", paths, remedy="give a sequence of strings")
    for name in names:
        _refuse_elsewhere(name)
    if not names:
        return
    listing = b"".join(arguments.encoded("paths", name) + b"\0" for name in names)
    result = _git(sandbox, f"tree={shlex.quote(head_tree)}\n{_RESTORE}", stdin=listing)
    if result.exit_code != 0:
        raise MiniSandboxError(f"cannot restore files of {sandbox.name}: {_tail(result)}")


def _refuse_elsewhere(path: str) -> None:
    parts = path.split("/")
    if any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise InvalidInput(
            "path",
            f"{path!r} is not a path of the repository",
            "name files relative to its root, without `.`, `..` and `.git`",
        )


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
