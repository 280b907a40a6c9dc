#!/usr/bin/env bash
# A server and three clients on this machine, over Flower with TLS and authenticated nodes. Leaves
# what they store in the folder "work".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir work
export FLWR_HOME=$PWD/work/flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

# The study's authority, and the server's certificate. Each hospital makes the key of its node.
cd work
key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${key[@]}" -keyout ca.key -out ca.pem -subj "/CN=study" -days 365
openssl req "${key[@]}" -keyout server.key -out server.csr -subj "/CN=server"
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem \
    -days 365 -extfile <(echo "subjectAltName=IP:127.0.0.1")
for name in a b c; do
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "$name.key" # and the public $name.key.pub
done
mkdir flwr
cat >flwr/config.toml <<END
[superlink]
default = "study"

[superlink.study]
address = "127.0.0.1:8000"
root-certificates = "$PWD/ca.pem"
END

# The server's side: only nodes whose keys are registered may connect.
flower-superlink --ssl-ca-certfile ca.pem --ssl-certfile server.pem --ssl-keyfile server.key \
    --enable-supernode-auth --disable-runtime-dependency-installation >superlink.log 2>&1 &
until (: >/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.5; done
for name in a b c; do flwr supernode register "$name.key.pub"; done

# Each hospital's side: a client that stays alive, and a node that passes messages on to it.
python - <<END # iris, dealt out like cards
import numpy as np
from sklearn.datasets import load_iris
for k, name in enumerate("abc"):
    np.savetxt(f"{name}.csv", load_iris().data[k::3], delimiter=",")
END
port=9100
for name in a b c; do
    python -m skfedem.deploy join --name "$name" --data "$name.csv" --socket "$name.socket" \
        --seed 0 >"$name.log" 2>&1 &
    port=$((port + 1))
    flower-supernode --superlink 127.0.0.1:8000 --root-certificates ca.pem --port "$port" \
        --auth-supernode-private-key "$name.key" \
        --node-config "name=\"$name\" socket=\"$PWD/$name.socket\"" >"node-$name.log" 2>&1 &
done

# The statistician's side.
flwr run .. --stream --run-config "state=\"$PWD/server\""
