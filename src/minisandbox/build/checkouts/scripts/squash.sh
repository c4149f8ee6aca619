# squash.sh DATE MTIME: make what lies in /testbed all that git knows there. Prints the new commit and its tree.
#
# The bug is in already. /tmp/changed lists the files that it changed, /tmp/hidden those that nobody may see before
# grading (NUL after each). The healthy tree, which is the answer, and the hidden files are then gone from history and
# objects: one commit, and the empty one on top that evaluation scripts expect. /tmp/tests.patch brings the hidden files back.
set -eu
date=$1 mtime=$2
cd /testbed
export GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C.UTF-8 GIT_LITERAL_PATHSPECS=1
# An object holds what a file holds that lies in the layer as well: equal bytes are packed once.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.looseCompression GIT_CONFIG_VALUE_0=0
export GIT_AUTHOR_NAME=minisandbox GIT_AUTHOR_EMAIL=minisandbox@localhost GIT_AUTHOR_DATE="@$date +0000"
export GIT_COMMITTER_NAME=minisandbox GIT_COMMITTER_EMAIL=minisandbox@localhost GIT_COMMITTER_DATE="@$date +0000"

git update-index --add --remove -z --stdin < /tmp/changed
buggy=$(git write-tree)
if [ "$buggy" = "$(git rev-parse 'HEAD^{tree}')" ]; then exit 92; fi
xargs -0 -r git ls-files -z -- < /tmp/hidden | xargs -0 -r git rm -q -f --
tree=$(git write-tree)
form='--binary --full-index --no-renames --no-color --no-ext-diff --no-textconv --src-prefix=a/ --dst-prefix=b/'
git diff-tree -r -p $form "$tree" "$buggy" > /tmp/tests.patch
if ! iconv -f UTF-8 -t UTF-8 /tmp/tests.patch > /dev/null 2>&1; then
    # Records are text; what is not is told as a binary change, which is base85.
    echo '* -diff' > /tmp/attributes
    git -c core.attributesFile=/tmp/attributes diff-tree -r -p $form "$tree" "$buggy" > /tmp/tests.patch
fi

root=$(git commit-tree -m 'minisandbox: the repository' "$tree" < /dev/null)
commit=$(git commit-tree -m 'minisandbox: the repository as installed' -p "$root" "$tree" < /dev/null)
rm -rf .git/refs .git/packed-refs .git/shallow .git/logs .git/ORIG_HEAD .git/COMMIT_EDITMSG
mkdir -p .git/refs/heads .git/refs/tags
git update-ref refs/heads/main "$commit"
git symbolic-ref HEAD refs/heads/main
git pack-refs --all
rm -rf .git/logs

git rev-list --objects --all | cut -d ' ' -f 1 | sort > /tmp/kept
git cat-file --batch-all-objects --batch-check='%(objectname)' | sort > /tmp/all
(cd .git/objects && comm -13 /tmp/kept /tmp/all | sed 's|^..|&/|' | xargs -r rm --)

xargs -0 -r sh -c 'for path; do [ ! -e "$path" ] && [ ! -L "$path" ] || touch -h -d "$0" -- "$path"; done' "@$mtime" \
    < /tmp/changed
# Anew: an old one may remember trees that are gone.
rm .git/index
git read-tree HEAD
git update-index -q --refresh
if [ -n "$(git status --porcelain)" ]; then
    echo "the work tree is not clean with the bug in it: $(git status --porcelain | head -n 3 | tr '\n' ' ')" >&2
    exit 1
fi
git rev-parse 'HEAD' 'HEAD^{tree}'
