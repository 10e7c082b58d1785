"""llama.cpp's server as it comes, on loopback: the other side of the bench."""

import signal
import sys

import xllamacpp


def main(model: str, port: str, places: str, context_tokens: str) -> None:
    """Serve until killed, each place with that much context."""
    params = xllamacpp.CommonParams()
    params.model.path, params.port = model, int(port)
    params.n_parallel, params.n_ctx = int(places), int(places) * int(context_tokens)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.chat_template, params.verbosity, params.fit_params = "chatml", 2, False
    server = xllamacpp.Server(params)
    print("serving at", server.listening_address, flush=True)  # noqa: T201 # the log of this child
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
