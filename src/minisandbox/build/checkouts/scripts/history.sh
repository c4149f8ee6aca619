# history.sh attach|detach MIRROR COMMIT: lend the checkout its past while the repository is installed.
#
# setuptools_scm, versioneer and their kin ask git for the last tag. A checkout without history has none, and would
# install itself as 0.1.dev, so objects and tags come from the mirror for as long as the install command runs.
# Only tags that are ancestors; what is lent is gone afterwards, the version stays. Versioneer has no variable that
# would hand its version in: such a project keeps the one of this install only until it is installed again.
set -eu
action=$1 mirror=$2 commit=$3
for folder in /testbed /testbed/.git; do
    if [ -L "$folder" ] || [ ! -d "$folder" ]; then
        echo "$folder is no directory any more" >&2
        exit 1
    fi
done
cd /testbed
export GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C.UTF-8
kept=/run/minisandbox-history
case $action in
    attach)
        mkdir "$kept"
        cp .git/packed-refs "$kept/packed-refs" 2>/dev/null || : > "$kept/packed-refs"
        printf '%s\n' "$mirror/objects" > .git/objects/info/alternates
        if [ -f .git/shallow ]; then mv .git/shallow "$kept/shallow"; fi
        git -c 'safe.directory=*' -C "$mirror" for-each-ref --merged="$commit" refs/tags \
            --format='%(refname) %(objectname)' |
            while read -r ref object; do
                git rev-parse -q --verify "$ref" >/dev/null || echo "create $ref $object"
            done > "$kept/lent"
        git update-ref --stdin < "$kept/lent"
        ;;
    detach)
        sed 's/^create \([^ ]*\) .*/delete \1/' "$kept/lent" | git update-ref --stdin
        find .git/refs/tags -mindepth 1 -depth -type d -empty -delete
        rm -f .git/objects/info/alternates .git/packed-refs
        if [ -s "$kept/packed-refs" ]; then cp "$kept/packed-refs" .git/packed-refs; fi
        if [ -f "$kept/shallow" ]; then mv "$kept/shallow" .git/shallow; fi
        rm -rf "$kept"
        # An object that is missing now was not there before: the install made a commit on what was lent.
        git rev-parse -q --verify 'HEAD^{tree}' >/dev/null
        ;;
esac
