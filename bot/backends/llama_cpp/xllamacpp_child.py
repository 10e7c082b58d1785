"""Run the child process of the engine `xllamacpp`: llama.cpp's own server, on a unix socket.

It is a child process because a crash in native code ends its process.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import xllamacpp

from bot.backends.llama_cpp import xllamacpp_devices
from bot.backends.llama_cpp.hardware import count_gpu_layers

# Other slots are served between two batches: half a second on one core. Larger ones are no faster.
_BATCH_TOKENS = 128
_LOG_WARNINGS = 2


def main() -> None:
    """Serve one model until terminated by the parent."""
    given = _arguments()
    os.umask(0o077)  # saved slots hold conversations
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
    params.kv_unified = False  # slots that share one cache lose their prefixes
    params.n_gpu_layers = count_gpu_layers(xllamacpp_devices.count_gpus(), given.gpu_layers)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.fit_params = False  # it would load the model twice to find settings that are given here
    if given.projector:  # some models need an image within one batch
        params.mmproj_use_gpu = params.n_gpu_layers > 0
    else:
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
    params.cache_prompt = True
    params.slot_save_path = f"{given.slots_folder}/"
    # The backend saves slots itself: with its own cache the server would empty them unnoticed, and
    # keep conversations that were to be forgotten.
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.ui = False
    # The server would run the model's own template, which is not trusted; prompts come rendered.
    params.chat_template = "chatml"
    params.verbosity = _LOG_WARNINGS
    Path(given.socket).unlink(missing_ok=True)  # left by a process that was killed
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # llama.cpp has logged the reason
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
    parser.add_argument("--slots-folder", required=True, help="the folder of saved slots")
    parser.add_argument("--context-tokens", type=int, required=True, help="of each conversation")
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--gpu-layers", default="auto", help="a number, or auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
