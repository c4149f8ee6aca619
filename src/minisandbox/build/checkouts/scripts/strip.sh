# strip.sh: leave out of /testbed/.git what a node makes again from the files and the index.
#
# These are the trees, and the blobs that a file of the work tree holds as it is. Others stay, each as a file:
# commits, tags, and what the checkout converted (line ends, keywords, encodings).
set -eu
cd /testbed
export GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C.UTF-8

# With this every file is taken as it is, so what differs from the index now is what was converted.
mkdir -p .git/info
echo '* -text !eol -ident !filter !working-tree-encoding !diff' > .git/info/attributes
export GIT_INDEX_FILE=/tmp/strip.index
git read-tree HEAD
git update-index -q --refresh > /dev/null || :
git diff-files -z --name-only --ignore-submodules=all > /tmp/strip.converted
rm .git/info/attributes
# Byte-code is in no layer, so where a project tracks it no file tells its blobs.
git ls-files -z -- '*.pyc' '*__pycache__/*' >> /tmp/strip.converted

git ls-files -s -z | tr '\n\0' '?\n' | grep -v '^160000' | cut -d ' ' -f 2 | sort -u > /tmp/strip.blobs || :
GIT_LITERAL_PATHSPECS=1 xargs -0 -r git ls-files -s -z -- < /tmp/strip.converted |
    tr '\n\0' '?\n' | cut -d ' ' -f 2 | sort -u > /tmp/strip.kept
git cat-file --batch-all-objects --batch-check='%(objectname) %(objecttype)' > /tmp/strip.all
grep -v ' tree$' /tmp/strip.all | cut -d ' ' -f 1 | sort -u | comm -23 - /tmp/strip.blobs >> /tmp/strip.kept

git -c pack.threads=1 pack-objects -q --stdout < /tmp/strip.kept > /tmp/strip.pack
rm -rf .git/objects
mkdir -p .git/objects/info .git/objects/pack
git -c core.looseCompression=0 unpack-objects -q < /tmp/strip.pack
rm -f /tmp/strip.*
