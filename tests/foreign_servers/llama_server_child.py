"""llama.cpp's own server from the wheel, over TCP, with a template that has tools."""

import signal
import sys
from pathlib import Path

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port = 0
params.api_keys = [sys.argv[2]]
params.n_parallel, params.n_ctx = 2, 2 * 1536
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
params.chat_template = Path(sys.argv[3]).read_text("utf-8")
params.use_jinja, params.verbosity, params.fit_params = True, 2, False
server = xllamacpp.Server(params)
print("serving at", server.listening_address, flush=True)  # noqa: T201
while True:
    signal.pause()
