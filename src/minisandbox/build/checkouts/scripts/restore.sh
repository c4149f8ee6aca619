# restore.sh: take everything out of the checkout's .git but its index and objects; the rest is written anew.
set -eu
for folder in /testbed /testbed/.git /testbed/.git/objects; do
    if [ -L "$folder" ] || [ ! -d "$folder" ]; then
        echo "$folder is no directory any more" >&2
        exit 1
    fi
done
cd /testbed/.git
find . -mindepth 1 -maxdepth 1 ! -name objects ! -name index -exec rm -rf {} +
if [ -L index ] || [ ! -f index ]; then rm -rf index; fi
find objects -mindepth 1 ! -type d ! -type f -delete
rm -rf objects/info
mkdir -p refs/heads refs/tags info objects/info objects/pack
