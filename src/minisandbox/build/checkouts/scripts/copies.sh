# copies.sh: list what is equal to a file that the bug changes, or that is hidden, and lies where it was installed to.
#
# /tmp/paths lists files in /testbed (NUL after each). Writes, for each copy, the path and the copy (NUL after each). An archive
# that names the file is no copy but an answer that nothing takes out: exit code 93, and its path.
set -eu
cd /testbed
export LC_ALL=C
is_tracked() {
    [ "${1#./}" != "$1" ] && git ls-files --error-unmatch -- ":(literal)$1" > /dev/null 2>&1
}
mapfile -d '' archives < <(
    find . -name .git -prune -o -type f \( -name '*.egg' -o -name '*.whl' -o -name '*.zip' -o -name '*.tar' -o -name '*.tar.*' \
        -o -name '*.tgz' \) -print0
    find "$VIRTUAL_ENV"/lib/python*/site-packages -maxdepth 1 -type f -name '*.egg' -print0
)
names() {
    # Those in a zip file stand there as they are.
    case $1 in *.egg | *.whl | *.zip) cat -- "$1" ;; *) tar -tf "$1" 2> /dev/null ;; esac
}
while IFS= read -r -d '' path; do
    [ -f "$path" ] && [ ! -L "$path" ] && [ -s "$path" ] || continue
    # As it is installed: without the directories above its package.
    case $path in src/?* | lib/?*) above=${path%%/*}/ ;; *) above= ;; esac
    inner=${path#"$above"}
    while top=${inner%%/*} && [ "$top" != "$inner" ] && [ ! -e "$above$top/__init__.py" ]; do
        above=$above$top/ inner=${inner#*/}
    done
    find . "$VIRTUAL_ENV" -name .git -prune -o -type f -name "${path##*/}" -size "$(stat -c %s "$path")c" -print0 |
        while IFS= read -r -d '' copy; do
            case $copy in "./$path") continue ;; */"$inner") ;; *) continue ;; esac
            # What is tracked is a file of its own.
            if ! is_tracked "$copy" && cmp -s "$path" "$copy"; then printf '%s\0%s\0' "$path" "$copy"; fi
        done
    for archive in "${archives[@]}"; do
        if ! is_tracked "$archive" && { names "$archive" || :; } | grep -F -- "$inner" > /dev/null; then
            echo "$archive" >&2
            exit 93
        fi
    done
done < /tmp/paths
