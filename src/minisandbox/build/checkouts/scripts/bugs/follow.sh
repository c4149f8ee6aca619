# follow.sh: make the copies in /tmp/copies (path, copy, NUL after each) what the files in /testbed are now.
set -eu
cd /testbed
while IFS= read -r -d '' path && IFS= read -r -d '' copy; do
    if [ -f "$path" ]; then cat -- "$path" > "$copy"; else rm -f -- "$copy"; fi
    # Compiled, it is what the file was.
    folder=$(dirname -- "$copy") name=${copy##*/}
    rm -f -- "$folder/__pycache__/${name%.py}".*.pyc
done < /tmp/copies
