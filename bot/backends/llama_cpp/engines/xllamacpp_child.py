"""The process that a local model lives in: llama.cpp's own server, on a unix socket.

A process of its own, because an error in the native code ends whatever it happens in.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import xllamacpp

from bot.backends.llama_cpp.engines import xllamacpp_devices
from bot.backends.llama_cpp.hardware import count_gpu_layers

# Between two batches others get their turn: half a second on one core. Larger ones read no faster.
_BATCH_TOKENS = 128
_WARNINGS = 2


def main() -> None:
    """Serve one model until killed; the parent decides when that is."""
    given = _arguments()
    os.umask(0o077)  # what it saves is what people said
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.mmproj.path = given.projector
    params.model_alias = {"local"}
    params.hostnames = [given.socket]
    params.port = 0
    params.api_keys = [Path(given.key_file).read_text(encoding="ascii")]
    params.cors_origins = ""
    params.n_parallel = given.parallel
    params.n_ctx = given.context_tokens * given.parallel  # it is divided among the slots
    params.kv_unified = False  # a slot that shares its memory loses its prefix
    params.n_gpu_layers = count_gpu_layers(xllamacpp_devices.gpus(), given.gpu_layers)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.fit_params = False  # it loads everything twice to find settings that we give anyway
    if given.projector:  # some models read an image in one batch or not at all
        params.mmproj_use_gpu = params.n_gpu_layers > 0
    else:
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
    params.cache_prompt = True
    params.slot_save_path = f"{given.states}/"
    # We keep the places ourselves: with its own cache the server would empty them behind our back,
    # and hold on to what was to be forgotten.
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.ui = False
    # It would try out the model's own template, which may be anybody's; we render elsewhere.
    params.chat_template = "chatml"
    params.verbosity = _WARNINGS
    Path(given.socket).unlink(missing_ok=True)  # left by one that was killed
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # llama.cpp has said why in the lines before
        sys.exit(f"{error} (model {given.model}, projector {given.projector or 'none'})")
    print("serving at", server.listening_address, flush=True)  # noqa: T201 # the log of this child
    while True:
        signal.pause()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--projector", default="", help="a GGUF; with it, the model sees images")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--key-file", required=True, help="holds the key that requests must carry")
    parser.add_argument("--states", required=True, help="the folder of saved places")
    parser.add_argument("--context-tokens", type=int, required=True, help="of each conversation")
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--gpu-layers", default="auto", help="a number, or auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
