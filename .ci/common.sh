# What the scripts of this folder share; to be sourced. Sets `checkout`, a temporary folder `work`,
# which `clean_up` removes, and an environment in which only what is installed on purpose counts.
# shellcheck shell=bash
set -euo pipefail
export LC_ALL=C.UTF-8 PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONSTARTUP

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)

clean_up() {
    rm -rf "$work"
}

# find_python CONDITION NAME...: the first Python of these names that fulfils a condition on
# sys.version_info and can make a virtual environment. Fails if there is none.
find_python() {
    local condition=$1 name
    shift
    for name in "$@"; do
        if "$name" -c "import sys; sys.exit(not sys.version_info[:2] $condition)" \
            >"$work/probe" 2>&1 &&
            "$name" -m venv "$work/probe-venv" >"$work/probe" 2>&1 &&
            "$work/probe-venv/bin/python" -m pip --version >"$work/probe" 2>&1; then
            rm -rf "$work/probe-venv"
            # Behind a version manager's launcher the real interpreter hides.
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
        rm -rf "$work/probe-venv"
    done
    return 1
}

# copy_checkout FOLDER: what a clone would hold, together with changes that are not committed yet.
copy_checkout() {
    mkdir "$1"
    (
        cd "$checkout"
        if git ls-files -z --cached --others --exclude-standard >"$work/files" 2>"$work/probe"; then
            while IFS= read -r -d '' file; do
                if [ -e "$file" ]; then printf '%s\0' "$file"; fi
            done <"$work/files" | tar -cf - --null --no-recursion -T -
        else
            tar -cf - --exclude=./.git --exclude=./.venv .
        fi
    ) | tar -xf - -C "$1"
}
