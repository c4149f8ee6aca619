# history.sh MIRROR COMMIT: lend the checkout its past while the repository is installed.
#
# setuptools_scm and its kin ask git for the last tag. A checkout without history has none, and would install itself
# as 0.1.dev, so objects and tags come from the mirror for as long as the install command runs. Only tags that are
# ancestors; everything is put back afterwards, the version stays. Versioneer has no variable that would hand its
# version in: such a project keeps the one of this install only until it is installed again.
set -eu
mirror=$1 commit=$2
cd /testbed
export GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C.UTF-8
printf '%s\n' "$mirror/objects" > .git/objects/info/alternates
rm -f .git/shallow
git -c 'safe.directory=*' -C "$mirror" for-each-ref --merged="$commit" refs/tags \
    --format='%(refname) %(objectname)' |
    while read -r ref object; do
        git rev-parse -q --verify "$ref" >/dev/null || echo "create $ref $object"
    done > /tmp/lent
git update-ref --stdin < /tmp/lent
rm /tmp/lent
