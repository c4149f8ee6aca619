# slim.sh: leave out of /testbed what an install compiled and nothing needs again. Prints how much that was.
#
# setuptools compiles all of an extension anew where a source of it is newer, whatever objects are there. Where others
# build in its directory (CMake, ninja, make), or a static library is made of objects, these are looked at again, and
# stay. The sections of libraries for debuggers are for people. Files of the repository stay as they are.
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
    xargs -0 -r stat -c %s -- < "$1" | awk '{ sum += $1 } END { printf "%d\n", sum }'
}
# Whether something else than setuptools builds in a directory or above it, up to build/temp.*.
is_built_in() {
    local folder=$1 name
    while :; do
        for name in CMakeCache.txt CMakeFiles build.ninja .ninja_log Makefile; do
            [ ! -e "$folder/$name" ] || return 0
        done
        case ${folder##*/} in build.* | build | temp.*) return 1 ;; esac
        case $folder in */*) folder=${folder%/*} ;; *) return 1 ;; esac
    done
}

list=$(mktemp) && archived=$(mktemp)
trap 'rm -f "$list" "$archived"' EXIT
made ':(glob)**/build/temp.*/**/*.a' | xargs -0 -r -n 1 ar t 2> /dev/null > "$archived" || :
made ':(glob)**/build/temp.*/**/*.o' | while IFS= read -r -d '' path; do
    if ! is_built_in "${path%/*}" && ! grep -qxF -- "${path##*/}" "$archived"; then
        printf '%s\0' "$path"
    fi
done > "$list"
if [ -s "$list" ]; then
    echo "$(size "$list") bytes of object files left out"
    xargs -0 rm -f -- < "$list"
fi

for program in strip readelf awk; do command -v "$program" > /dev/null || exit 0; done
# Only those that have any: to write a file of a layer below again would put all of it into this one. And only what
# ends with its section headers: strip would drop what somebody appended.
made '*.so' '*.so.*' | while IFS= read -r -d '' path; do
    end=$(readelf -h -W -- "$path" 2> /dev/null | awk -F: '
        /Start of section headers/ { start = $2 + 0 }
        /Size of section headers/ { each = $2 + 0 }
        /Number of section headers/ { number = $2 + 0 }
        END { print start + each * number }')
    if [ "$end" = "$(stat -c %s -- "$path")" ] &&
        readelf -S -W -- "$path" 2> /dev/null | grep -q ' \.z\?debug_'; then
        printf '%s\0' "$path"
    fi
done > "$list"
if [ -s "$list" ]; then
    before=$(size "$list")
    while IFS= read -r -d '' path; do
        # What it does not understand stays as it is.
        if strip --strip-debug -o "$path.slim" -- "$path" 2> /dev/null && [ -s "$path.slim" ]; then
            chmod --reference="$path" -- "$path.slim"
            mv -f -- "$path.slim" "$path"
        else
            rm -f -- "$path.slim"
        fi
    done < "$list"
    echo "$((before - $(size "$list"))) bytes for debuggers left out"
fi
