# checkout.sh MIRROR REVISION DEPTH MTIME: make /testbed from one commit of a mirror. Prints its hash and its date.
set -eu
mirror=$1 revision=$2 depth=$3 mtime=$4
export GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 GIT_LFS_SKIP_SMUDGE=1 LC_ALL=C.UTF-8
trust='-c safe.directory=* -c uploadpack.allowAnySHA1InWant=true -c core.hooksPath=/dev/null'

if ! commit=$(git $trust -C "$mirror" rev-parse --verify --quiet "$revision^{commit}"); then
    # A short hash that is that of several.
    commits=$(git $trust -C "$mirror" rev-parse --disambiguate="$revision" |
        git $trust -C "$mirror" cat-file --batch-check='%(objecttype)' | grep -c '^commit$' || :)
    [ "$commits" -lt 2 ] || exit 91
    exit 90
fi
date=$(git $trust -C "$mirror" show -s --format=%ct "$commit")
[ "$date" -ge 315619200 ] || date=315619200

mkdir -p /testbed
cd /testbed
git init -q -b main --template= .
git config core.trustctime false
git config core.checkStat minimal
git config core.autocrlf false
git config core.untrackedCache false
git config gc.auto 0
mkdir -p .git/info
# What running Python leaves behind is nobody's change; not every project says so itself.
printf '%s\n' '__pycache__/' '*.py[co]' '.pytest_cache/' > .git/info/exclude
git -c protocol.file.allow=always fetch -q --no-tags ${depth:+--depth "$depth"} \
    --upload-pack "git $trust upload-pack" "file://$mirror" "$commit"
git checkout -q -B main "$commit"

# Tags of the commits that came along, so that `git describe` finds what upstream's would. One that was
# annotated after the base commit keeps its name and loses its text, which may speak of what came later.
git $trust -C "$mirror" for-each-ref --merged="$commit" refs/tags \
    --format='%(refname) %(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end) %(taggerdate:unix)' |
    while read -r ref target written; do
        git cat-file -e "$target^{commit}" 2>/dev/null || continue
        if [ "${written:-0}" -le "$date" ]; then
            echo "+$ref:$ref"
        else
            git update-ref "$ref" "$target"
        fi
    done > /tmp/tags
if [ -s /tmp/tags ]; then
    git -c protocol.file.allow=always fetch -q --no-tags --stdin \
        --upload-pack "git $trust upload-pack" "file://$mirror" < /tmp/tags
fi

# One pack, made the same way every time. A full history keeps the deltas of the mirror: redoing them takes minutes.
git -c pack.threads=1 repack -a -d -q ${depth:+-f}
git pack-refs --all
rm -rf .git/FETCH_HEAD .git/ORIG_HEAD .git/logs .git/hooks .git/branches .git/description .git/objects/info/commit-graphs
find . -path ./.git -prune -o -exec touch -h -d "@$mtime" {} +
git update-index -q --refresh
git status --porcelain | head -n 5 >&2
echo "$commit $date"
