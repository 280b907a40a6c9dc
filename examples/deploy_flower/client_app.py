"""Passes messages on to the client at this node's socket."""

from flwr.clientapp import ClientApp

from skfedem.deploy.flower import relay

app = ClientApp()
app.query()(relay)
