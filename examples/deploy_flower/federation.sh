#!/usr/bin/env bash
# A server and three clients on this machine, over Flower with TLS and authenticated nodes. Leaves
# what they store in the folder "work".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
mkdir work
export FLWR_HOME=$PWD/work/flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

# Four ports that nobody listens at: of the server, and of the nodes for their own processes.
read -r port a_port b_port c_port <<<"$(python -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(own.getsockname()[1] for own in sockets))
')"

# The study's authority, and the server's certificate. Each hospital makes the key of its node.
cd work
key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
openssl req -x509 "${key[@]}" -keyout ca.key -out ca.pem -subj "/CN=study" -days 365 \
    -addext "keyUsage=critical,keyCertSign"
openssl req "${key[@]}" -keyout server.key -out server.csr -subj "/CN=server"
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem \
    -days 365 -extfile <(printf "authorityKeyIdentifier=keyid\nsubjectAltName=IP:127.0.0.1")
for name in a b c; do
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "$name.key" # and the public $name.key.pub
done
mkdir flwr
cat >flwr/config.toml <<END
[superlink]
default = "study"

[superlink.study]
address = "127.0.0.1:$port"
root-certificates = "$PWD/ca.pem"
END

# The server's side: only nodes whose keys are registered may connect.
flower-superlink --port "$port" --ssl-ca-certfile ca.pem --ssl-certfile server.pem \
    --ssl-keyfile server.key --enable-supernode-auth --disable-runtime-dependency-installation \
    >superlink.log 2>&1 &
superlink=$!
until (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    kill -0 "$superlink" # unless it has ended
    sleep 0.5
done
for name in a b c; do flwr supernode register "$name.key.pub"; done

# Each hospital's side: a client that stays alive, and a node that passes messages on to it.
python - <<END # iris, dealt out like cards
import numpy as np
from sklearn.datasets import load_iris
for k, name in enumerate("abc"):
    np.savetxt(f"{name}.csv", load_iris().data[k::3], delimiter=",")
END
for name in a b c; do
    own_port=${name}_port
    python -m skfedem.deploy join --name "$name" --data "$name.csv" --socket "$name.socket" \
        --seed 0 >"$name.log" 2>&1 &
    flower-supernode --superlink "127.0.0.1:$port" --root-certificates ca.pem --port "${!own_port}" \
        --auth-supernode-private-key "$name.key" \
        --node-config "name=\"$name\" socket=\"$PWD/$name.socket\"" >"node-$name.log" 2>&1 &
done

# The statistician's side.
flwr run .. --stream --run-config "state=\"$PWD/server\""
