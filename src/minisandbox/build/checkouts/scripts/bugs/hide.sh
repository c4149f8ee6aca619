# hide.sh: take away what installing made of the hidden files, but not yet these themselves.
#
# /tmp/hidden lists them (NUL after each), /tmp/copies pairs of one and a copy (NUL after each). Gone are then the copies,
# what was compiled of both, and the lines that name them in the lists of what belongs to an install.
set -eu
cd /testbed
export LC_ALL=C
compiled() {
    local folder name
    folder=$(dirname -- "$1") name=${1##*/}
    rm -f -- "$folder/__pycache__/${name%.py}".*.pyc
}
declare -A hidden=()
: > /tmp/names
while IFS= read -r -d '' path; do
    compiled "$path"
    name=${path##*/}
    printf '%s\n' "${name%.py}" >> /tmp/names
    # As it is listed: from any folder above it, of which one may be that of sources or of a project in the repository.
    while hidden["$path"]=1 && [ "${path#*/}" != "$path" ]; do path=${path#*/}; done
done < /tmp/hidden
while IFS= read -r -d '' path && IFS= read -r -d '' copy; do
    rm -f -- "$copy"
    compiled "$copy"
    # As commit.sh wrote it.
    if [ "${copy#./}" != "$copy" ]; then
        printf '/%s' "${copy#./}" | sed -z -e 's/[][\\*?]/\\&/g' -e 's/ $/\\ /' | tr '\n' '?'
        echo
    fi
done < /tmp/copies > /tmp/gone
if [ -s /tmp/gone ] && [ -f .git/info/exclude ]; then
    grep -vxF -f /tmp/gone -- .git/info/exclude > /tmp/exclude || [ $? = 1 ]
    cat /tmp/exclude > .git/info/exclude
fi
[ -s /tmp/names ] || exit 0
find . "$VIRTUAL_ENV" -name .git -prune -o -type f \( -path '*.egg-info/SOURCES.txt' -o -path '*.egg-info/installed-files.txt' \
    -o -path '*.dist-info/RECORD' \) -print0 |
    while IFS= read -r -d '' list; do
        grep -qF -f /tmp/names -- "$list" || continue
        # What is tracked is the project's, and seen in its tree.
        if [ "${list#./}" != "$list" ] && git ls-files --error-unmatch -- ":(literal)$list" > /dev/null 2>&1; then
            continue
        fi
        while IFS= read -r line || [ -n "$line" ]; do
            name=$line
            case $list in *.dist-info/RECORD) name=${name%,*} name=${name%,*} ;; esac
            while [ "${name#../}" != "$name" ]; do name=${name#../}; done
            case $name in *__pycache__/*.*.pyc)
                name=${name/__pycache__\//}
                name=${name%.*.pyc}.py
                ;;
            esac
            [ -n "$name" ] && [ -n "${hidden["$name"]+x}" ] || printf '%s\n' "$line"
        done < "$list" > /tmp/list
        cat /tmp/list > "$list"
    done
