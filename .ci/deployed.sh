# What .ci/flower and .ci/nvflare share; to be sourced after common.sh.
# shellcheck shell=bash

# install_with EXTRA: copy of this checkout, and an environment with it and what the extra needs.
install_with() {
    local python
    extra=$1
    python=$(find_python ">= (3, 11)" python3.13 python3.12 python3.11 python3)
    copy_checkout "$work/copy"
    "$python" -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet "$work/copy[$extra]"
    export PATH="$work/venv/bin:$PATH"
    pip list --format=freeze | grep -iE "^(flwr|nvflare|numpy|scipy|scikit-learn)=="
}

# End what a federation has left, for some of its processes have groups of their own. The commands of
# all have the name of the temporary folder.
end_left_and_clean_up() {
    local left
    left=$(pgrep -f "$work/" || true)
    if [ -n "$left" ]; then
        echo "ends processes that were left: ${left//$'\n'/ }" >&2
        # shellcheck disable=SC2086
        kill -KILL $left 2>"$work/probe" || true
    fi
    clean_up
}

# federate SECONDS: run the example's federation, which ends after some time at the latest.
federate() {
    local status=0
    timeout --kill-after=60 "$1" bash "$work/copy/examples/deploy_$extra/federation.sh" || status=$?
    if [ "$status" -ne 0 ]; then
        tail -n 20 "$work/copy/examples/deploy_$extra/work"/*.log >&2
        return "$status"
    fi
}

# equals_simulation RESULT: compare the fitted mixture with the simulation.
equals_simulation() {
    (cd "$work" && python -W ignore "$checkout/.ci/equals_simulation.py" \
        "$work/copy/examples/deploy_$extra/work" "$1")
}
