"""Check what a wheel and an sdist hold: all files of the package, and all of the checkout's.

Run in the copy of the checkout that they were built from: ``check_archives.py WHEEL SDIST``.
"""

import sys
import tarfile
import zipfile
from pathlib import Path


def files_of(folder):
    """Paths below a folder, but for what the build has left there."""
    paths = [path.relative_to(".") for path in Path(folder).rglob("*") if path.is_file()]
    left = [path for path in paths if path.parts[0] == "build" or ".egg-info/" in str(path)]
    return {path.as_posix() for path in paths} - {path.as_posix() for path in left}


def held_by_sdist(name):
    """Paths in an sdist, without the folder that all of them are in."""
    with tarfile.open(name) as archive:
        paths = [Path(member.name) for member in archive if member.isfile()]
    return {Path(*path.parts[1:]).as_posix() for path in paths}


def held_by_wheel(name):
    """Paths in a wheel."""
    with zipfile.ZipFile(name) as archive:
        return set(archive.namelist())


def check(name, held, wanted, is_metadata):
    """Exit unless an archive holds what is wanted, and nothing more but metadata."""
    surplus = {path for path in held - wanted if not is_metadata(path)}
    for what, paths in (("lacks", wanted - held), ("should not hold", surplus)):
        if paths:
            sys.exit(f"{name} {what} {', '.join(sorted(paths))}. See MANIFEST.in, pyproject.toml.")
    print(f"{Path(name).name}: {len(held)} files")


def main(wheel, sdist):
    """Check both."""
    check(wheel, held_by_wheel(wheel), files_of("skfedem"), lambda path: ".dist-info/" in path)
    check(
        sdist,
        held_by_sdist(sdist),
        files_of("."),
        lambda path: path == "PKG-INFO" or ".egg-info/" in path,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
