"""What conda calls a distribution, what the package index calls it, and what the index lacks.

All names are canonical (PEP 503). The tables hold only what the two disagree on: a name that is in
none of them is the same on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.version import Version

#: Python distributions that the index has under another name. conda splits some of them in two
#: (``numpy-base`` holds the files, ``numpy`` the dependencies), and puts "python-" before the
#: binding of a C library that has the plain name.
_RENAMED: Mapping[str, str] = {
    "antlr-python-runtime": "antlr4-python3-runtime",
    "brotli-python": "brotli",
    "dask-core": "dask",
    "iris": "scitools-iris",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "nbconvert-core": "nbconvert",
    "numpy-base": "numpy",
    "py-opencv": "opencv-python",
    "py-xgboost": "xgboost",
    "pyarrow-core": "pyarrow",
    "pydap-server": "pydap",
    "pytables": "tables",
    "python-blosc": "blosc",
    "python-build": "build",
    "python-duckdb": "duckdb",
    "python-eccodes": "eccodes",
    "python-fastjsonschema": "fastjsonschema",
    "python-flatbuffers": "flatbuffers",
    "python-graphviz": "graphviz",
    "python-kaleido": "kaleido",
    "python-lmdb": "lmdb",
    "python-tzdata": "tzdata",
    "python-xxhash": "xxhash",
    "pytorch": "torch",
    "seaborn-base": "seaborn",
}

_QT = "Qt bindings, which need the libraries of a desktop"
_CDAT = "a part of CDAT, which is not on the package index"

#: Python distributions that pip cannot have, and why.
_UNAVAILABLE: Mapping[str, str] = {
    "cdat-info": _CDAT,
    "cdms2": _CDAT,
    "cdtime": _CDAT,
    # The index has an unrelated project of this name.
    "distarray": _CDAT,
    "esmpy": "the ESMF bindings are not on the package index",
    "libcf": _CDAT,
    "pycairo": "source only on the package index, and needs the headers of cairo",
    "pygobject": "source only on the package index, and needs the headers of GObject",
    "pyqt": _QT,
    # Alone it would make `import PyQt5` succeed.
    "pyqt5-sip": _QT,
    "sip": _QT,
    "wxpython": "source only on the package index, and needs the headers of GTK",
}

#: What people list in an ``environment.yml`` and is no Python distribution: tools and libraries.
#: Some of the names belong to unrelated projects on the index.
_NATIVE = frozenset(
    {
        "blas", "blosc", "boost", "brotli", "bzip2", "c-compiler", "ca-certificates", "cairo",
        "ccache", "compilers", "conda", "curl", "cxx-compiler", "dbus", "eccodes", "eigen",
        "esmf", "ffmpeg", "fftw", "font-ttf-dejavu-sans-mono", "fontconfig",
        "fonts-conda-forge", "fortran-compiler", "freetype", "geos", "git", "glib",
        "gobject-introspection", "graphviz", "gstreamer", "gtk2", "gtk3", "gtk4", "harfbuzz",
        "hdf4", "hdf5", "icu", "imagemagick", "intel-openmp", "krb5", "lcms2", "libcdms",
        "libgdal", "libiconv", "libnetcdf", "libopenblas", "libpng", "libtiff", "libxml2",
        "libxslt", "llvm-openmp", "lz4-c", "make", "mpich", "ncurses", "netcdf-c",
        "netcdf-fortran", "nodejs", "nomkl", "openblas", "openjpeg", "openmpi", "openssl", "pandoc",
        "pango", "perl", "pixman", "pkg-config", "proj", "qhull", "qt", "qt-main", "r-base",
        "readline", "rust", "snappy", "sqlite", "texlive-core", "tk", "udunits2", "xz", "yaml",
        "zeromq", "zlib", "zstd",
    }
)  # fmt: skip
#: conda's compilers are named after the platform that they compile for.
_COMPILER = re.compile(r"(gcc|gxx|gfortran|binutils|sysroot|ld-impl)-linux-\w+")

#: Backports, and the first Python that has the original. There they serve nobody, and some break.
_IN_THE_LIBRARY: Mapping[str, str] = {
    "backports-zoneinfo": "3.9",
    "contextvars": "3.7",
    "dataclasses": "3.7",
    "enum34": "3.4",
    "pathlib": "3.4",
    "typing": "3.5",
}

#: (name, version, minor version of Python): the nearest version that has a wheel. The index has the
#: asked one only as source, which today's compilers and build tools do not build.
_NEAREST: Mapping[tuple[str, str, str], str] = {
    ("numpy", "1.19.2", "3.9"): "1.19.5",
    ("scipy", "1.5.2", "3.9"): "1.5.4",
}

#: Distribution to what it cannot be imported without and exports lack all the same: the published
#: exports of matplotlib have no line that speaks of matplotlib. conda puts it back when it solves.
#: The first version is that from which on it is needed.
_LEFT_OUT: Mapping[str, tuple[str, str, str]] = {"ipython": ("7.23", "matplotlib-inline", "0.1.7")}


def index_name(name: str) -> str:
    """What the package index calls a canonical conda name."""
    return _RENAMED.get(name, name)


def why_unavailable(name: str, *, python: str) -> str:
    """Why pip cannot have, or need not have, a Python distribution of conda; "" if it can.

    ``python`` is a minor version.
    """
    since = _IN_THE_LIBRARY.get(name)
    if since is not None and Version(python) >= Version(since):
        return f"in the standard library since Python {since}"
    return _UNAVAILABLE.get(name, "")


def is_native(name: str) -> bool:
    """Whether a name of conda is known to be no Python distribution."""
    return name in _NATIVE or _COMPILER.fullmatch(name) is not None


def left_out(name: str, version: str) -> tuple[str, str] | None:
    """Name and version of what an export with this distribution needs and may lack."""
    needed = _LEFT_OUT.get(name)
    if needed is None or Version(version) < Version(needed[0]):
        return None
    return needed[1:]


def nearest_version(name: str, version: str, *, python: str) -> str:
    """The version to install where the index has no usable file of the one asked for."""
    return _NEAREST.get((name, version, python), version)
