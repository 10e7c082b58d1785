"""Run the child process of the gguf embedder: llama.cpp's own server, on a unix socket.

It is a child process because a crash in native code ends its process.
"""

import argparse
import signal
from pathlib import Path

import xllamacpp

_LOG_WARNINGS = 2


def main() -> None:
    """Serve one model until terminated by the parent."""
    given = _arguments()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.model_alias = {given.alias}
    params.hostnames = [given.socket]
    params.port = 0
    params.api_keys = [Path(given.key_file).read_text(encoding="ascii")]
    params.cors_origins = ""
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type(given.pooling)
    params.n_parallel = 1
    params.n_ctx = params.n_batch = params.n_ubatch = given.tokens  # a text is one batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.fit_params = False
    params.cache_ram_mib = 0
    params.ui = False
    params.chat_template = "chatml"  # the model's own is not trusted, and not used here
    params.verbosity = _LOG_WARNINGS
    Path(given.socket).unlink(missing_ok=True)  # left by a process that was killed
    server = xllamacpp.Server(params)
    print("serving at", server.listening_address, flush=True)  # noqa: T201 # the log of this child
    while True:
        signal.pause()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--key-file", required=True, help="holds the key that requests must carry")
    parser.add_argument("--pooling", type=int, required=True, help="llama.cpp's number")
    parser.add_argument("--tokens", type=int, required=True, help="of the longest text")
    parser.add_argument("--threads", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
