#!/usr/bin/env bash
# A server and three sites on this machine, over NVIDIA FLARE with certificates that it provisions.
# Leaves what they store in the folder "work".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir work
cd work
export HOME=$PWD NVFLARE_POC_WORKSPACE=$PWD/poc # NVIDIA FLARE stores settings in the home folder
stop() {
    nvflare poc stop || nvflare poc stop || true # it gives up after 30 s
    kill $(jobs -p) || true
    wait
}
trap 'stop >stop.log 2>&1' EXIT

# Server, sites and an administrator get certificates and startup kits.
nvflare poc prepare -c a b c --force
sites=$PWD/poc/example_project/prod_00

# allow SITE CLASS: its owner lets jobs use a class of skfedem.
allow() {
    sed "s/\"class_allow_list\": \[/&\"$2\", /" "$sites/$1/local/resources.json.default" \
        >"$sites/$1/local/resources.json"
}
allow server skfedem.deploy.nvflare.FitController

# Each site's side: a client that stays alive, and NVIDIA FLARE's, which passes messages on to it.
python - <<END # iris, dealt out like cards
import numpy as np
from sklearn.datasets import load_iris
for k, name in enumerate("abc"):
    np.savetxt(f"{name}.csv", load_iris().data[k::3], delimiter=",")
END
for name in a b c; do
    allow "$name" skfedem.deploy.nvflare.Relay
    python -m skfedem.deploy join --name "$name" --data "$name.csv" \
        --socket "$sites/$name/local/skfedem.socket" --seed 0 >"$name.log" 2>&1 &
done
nvflare poc start --timeout 600

# The statistician's side.
python ../job.py
job=$(nvflare --format json job submit -j jobs/skfedem | sed -n 's/.*"job_id": *"\([^"]*\)".*/\1/p')
nvflare job wait "$job"
nvflare job download "$job"
