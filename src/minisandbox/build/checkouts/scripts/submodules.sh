# submodules.sh MTIME (MIRROR COMMIT PATH NAME URL)...: put submodules into /testbed, each with its one commit.
#
# Each has a .git of its own in its folder, and not in the .git of the repository, which is put back to what it was
# after the install. What the install makes in them is no change: git is told to ignore it.
set -eu
mtime=$1
shift
export GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 GIT_LFS_SKIP_SMUDGE=1 LC_ALL=C.UTF-8
trust='-c safe.directory=* -c uploadpack.allowAnySHA1InWant=true -c core.hooksPath=/dev/null'
while [ $# -ge 5 ]; do
    mirror=$1 commit=$2 path=$3 name=$4 url=$5
    shift 5
    git $trust -C "$mirror" cat-file -e "$commit^{commit}" 2>/dev/null || { echo "$path $commit"; exit 90; }
    mkdir -p "/testbed/$path"
    cd "/testbed/$path"
    git init -q -b main --template= .
    git config core.trustctime false
    git config core.checkStat minimal
    git config core.autocrlf false
    git config gc.auto 0
    mkdir -p .git/info
    printf '%s\n' '__pycache__/' '*.py[co]' '.pytest_cache/' > .git/info/exclude
    git -c protocol.file.allow=always fetch -q --no-tags --depth 1 \
        --upload-pack "git $trust upload-pack" "file://$mirror" "$commit"
    git checkout -q --detach "$commit"
    git -c pack.threads=1 repack -a -d -q -f
    rm -rf .git/FETCH_HEAD .git/ORIG_HEAD .git/logs .git/hooks .git/branches .git/description
    find . -path ./.git -prune -o -exec touch -h -d "@$mtime" {} +
    git update-index -q --refresh
    cd /testbed
    git config "submodule.$name.url" "$url"
    git config "submodule.$name.active" true
    git config "submodule.$name.ignore" dirty
    touch -d "@$mtime" "$path"
done
if [ -n "$(git status --porcelain)" ]; then
    echo "the work tree is not clean with its submodules: $(git status --porcelain | head -n 3 | tr '\n' ' ')" >&2
    exit 1
fi
