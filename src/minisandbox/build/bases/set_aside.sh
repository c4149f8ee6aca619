# set_aside.sh FOLDER: have dpkg put configuration files in their places, when it configures the package that they are of.
#
# It unpacks them beside their places, so that what is not set up yet is not called by the scripts of others: libpaper1
# runs whatever lies in /etc/libpaper.d, and what texlive-base has there fails until TeX is configured.
# FOLDER/conffiles lists them.
while read -r file; do
    mv "$file" "$file.dpkg-new"
done < "$1/conffiles"
