# configure.sh FOLDER: have dpkg configure the packages whose files are there already.
#
# FOLDER holds what dpkg has to know of them: status (stanzas), triggers (file with `name<space>package` lines) and
# preinst (names of packages that have such a script). Services are not started, and owners are not changed: a base
# has to come out the same whoever builds it, and there may be one id only.
folder=$1
dpkg=/var/lib/dpkg
mkdir -p $dpkg/info $dpkg/updates $dpkg/triggers $dpkg/alternatives $dpkg/parts
for name in status available diversions statoverride; do
    [ -e "$dpkg/$name" ] || : > "$dpkg/$name"
done
[ -e $dpkg/info/format ] || echo 1 > $dpkg/info/format
cat "$folder/status" >> $dpkg/status
while read -r trigger package; do
    case $trigger in
    /*) echo "$trigger $package" >> $dpkg/triggers/File ;;
    *) echo "$package" >> "$dpkg/triggers/$trigger" ;;
    esac
done < "$folder/triggers"

# Programs that write these keep the owner they have, and make new ones the group shadow's.
for name in shadow gshadow; do
    [ -e "/etc/$name" ] || install -m 640 /dev/null "/etc/$name"
done
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
while read -r package; do
    echo "preinst of $package"
    DPKG_MAINTSCRIPT_PACKAGE=${package%%:*} DPKG_MAINTSCRIPT_NAME=preinst DPKG_MAINTSCRIPT_ARCH=$(dpkg --print-architecture) \
        DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT=1 DPKG_ROOT='' DPKG_ADMINDIR=$dpkg DPKG_RUNNING_VERSION=1.21 \
        "$dpkg/info/$package.preinst" install
done < "$folder/preinst"
dpkg --force-unsafe-io --configure --pending
rm -f /usr/sbin/policy-rc.d

# Every file that the packages have, but for what was left out on purpose, is where dpkg looks for it.
lost=$(dpkg --verify | grep '^missing' | grep -vE ' /usr/share/(doc|doc-base|man|info|lintian|bug|gnome/help|locale)/' || true)
if [ -n "$lost" ]; then
    echo "error: files of packages are missing after their configuration: $lost" >&2
    exit 1
fi
