# slim.sh: leave out of /testbed what an install compiled and nothing reads again. Prints how much that was.
#
# distutils compiles into build/temp.<platform>, and never looks at an object there again: where a source is newer it
# compiles all of an extension anew, elsewhere it looks at the library alone. The sections of libraries for
# debuggers are for people; they are most of what CPython's own flags (-g) make. Files of the repository stay as they are.
set -eu
cd /testbed
export GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C.UTF-8

made() {
    git ls-files --others -z -- "$@" | while IFS= read -r -d '' path; do
        if [ -f "$path" ] && [ ! -L "$path" ]; then
            printf '%s\0' "$path"
        fi
    done
}
size() {
    du -b -c --files0-from="$1" | tail -n 1 | cut -f 1
}

list=$(mktemp)
trap 'rm -f "$list"' EXIT
made ':(glob)**/build/temp.*/**/*.o' > "$list"
if [ -s "$list" ]; then
    echo "$(size "$list") bytes of object files left out"
    xargs -0 rm -f -- < "$list"
fi
command -v strip > /dev/null && command -v readelf > /dev/null || exit 0
# Only those that have any: to write a file of a layer below again would put all of it into this one.
made '*.so' '*.so.*' | while IFS= read -r -d '' path; do
    if readelf -S -W -- "$path" 2> /dev/null | grep -q ' \.z\?debug_'; then
        printf '%s\0' "$path"
    fi
done > "$list"
if [ -s "$list" ]; then
    before=$(size "$list")
    # What it does not understand stays as it is.
    xargs -0 -n 1 strip --strip-debug -- < "$list" 2> /dev/null || :
    echo "$((before - $(size "$list"))) bytes for debuggers left out"
fi
