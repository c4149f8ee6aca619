# copies.sh: list what is equal to a file that the bug changes, or that is hidden, and lies where it was installed to.
#
# /tmp/paths lists files in /testbed (NUL after each). Writes, for each copy, the path and the copy (NUL after each). An archive
# that names the file is no copy but an answer that nothing takes out: exit code 93, and its path.
set -eu
cd /testbed
export LC_ALL=C
while IFS= read -r -d '' path; do
    [ -f "$path" ] && [ ! -L "$path" ] && [ -s "$path" ] || continue
    # As it is installed: without the directory of sources.
    case $path in src/?* | lib/?*) inner=${path#*/} ;; *) inner=$path ;; esac
    find . "$VIRTUAL_ENV" -name .git -prune -o -type f -name "${path##*/}" -size "$(stat -c %s "$path")c" -print0 |
        while IFS= read -r -d '' copy; do
            case $copy in "./$path") continue ;; */"$inner") ;; *) continue ;; esac
            # What is tracked is a file of its own.
            if [ "${copy#./}" != "$copy" ] && git ls-files --error-unmatch -- ":(literal)$copy" > /dev/null 2>&1; then
                continue
            fi
            if cmp -s "$path" "$copy"; then printf '%s\0%s\0' "$path" "$copy"; fi
        done
    for archive in "$VIRTUAL_ENV"/lib/python*/site-packages/*.egg; do
        if [ -f "$archive" ] && grep -qF -- "$inner" "$archive"; then
            echo "$archive" >&2
            exit 93
        fi
    done
done < /tmp/paths
