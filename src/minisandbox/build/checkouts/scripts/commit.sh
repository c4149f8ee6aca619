# commit.sh DATE MTIME: put what the install step did to the checkout on record. Prints the new commit and its tree.
#
# Tracked files that it changed go into a commit on top of base, as in the official images; an empty commit if
# there is none, because evaluation scripts run `git show`, which prints the whole tree of a parentless commit.
# Files that it made and the project does not ignore are excluded by name, so that `git status` is clean and no
# diff of an agent's work holds them.
set -eu
date=$1 mtime=$2
for folder in /testbed /testbed/.git; do
    if [ -L "$folder" ] || [ ! -d "$folder" ]; then
        echo "$folder is no directory any more" >&2
        exit 1
    fi
done
cd /testbed
export GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C.UTF-8
export GIT_AUTHOR_NAME=minisandbox GIT_AUTHOR_EMAIL=minisandbox@localhost GIT_AUTHOR_DATE="@$date +0000"
export GIT_COMMITTER_NAME=minisandbox GIT_COMMITTER_EMAIL=minisandbox@localhost GIT_COMMITTER_DATE="@$date +0000"

git ls-files --others --exclude-standard -z | while IFS= read -r -d '' path; do
    # A pattern ends with its line; `?` stands for the line end in a name.
    printf '/%s' "$path" | sed -z -e 's/[][\\*?]/\\&/g' -e 's/ $/\\ /' | tr '\n' '?'
    echo
done > /tmp/made
cat /tmp/made >> .git/info/exclude

git diff --name-only --no-renames --diff-filter=d -z | xargs -0 -r touch -h -d "@$mtime" --
git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q -a --allow-empty --no-verify \
    -m 'minisandbox: the repository as installed'
git pack-refs --all
rm -rf .git/logs .git/COMMIT_EDITMSG .git/ORIG_HEAD .git/hooks
git update-index -q --refresh
if [ -n "$(git status --porcelain)" ]; then
    echo "the work tree is not clean after the install: $(git status --porcelain | head -n 3 | tr '\n' ' ')" >&2
    exit 1
fi
git rev-parse 'HEAD' 'HEAD^{tree}'
