# locales.sh LOCALES WHEELHOUSE: make the folders that the environment's settings name.
#
# Evaluation scripts export LC_ALL=en_US.UTF-8, and where that is missing Python 3.6 reads files as ASCII.
# The real one is made where its sources are; else C.UTF-8 answers to its name, which differs in order and format.
locales=$1 wheelhouse=$2
mkdir -p "$locales" "$wheelhouse"
if [ -f /usr/share/i18n/locales/en_US ] && localedef -i en_US -f UTF-8 "$locales/en_US.utf8" 2>/dev/null; then
    exit 0
fi
for name in C.utf8 C.UTF-8; do
    if [ -d "/usr/lib/locale/$name" ]; then
        cp -r "/usr/lib/locale/$name" "$locales/en_US.utf8"
        exit 0
    fi
done
echo "this base has neither the sources of en_US.UTF-8 nor C.UTF-8" >&2
exit 1
