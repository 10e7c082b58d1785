"""The engine `xllamacpp`: a child process that runs llama.cpp's server, to chat or to embed.

It is a child process because native code may crash, and because that code loads drivers. Its
argument is a JSON object of options; with `pooling`, the server embeds texts.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import xllamacpp

from bot.backends.llama_cpp.hardware import choose_gpu_layer_count

# Half a second on one core; other slots are served between batches. Larger batches are no faster.
_BATCH_TOKENS = 128
_WARNING_LOG_LEVEL = 2


def main() -> None:
    options = json.loads(sys.argv[1])
    os.umask(0o077)  # saved slots contain conversations
    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {"local"}
    if "socket" in options:
        Path(options["socket"]).unlink(missing_ok=True)  # left behind by a killed process
        params.hostnames, params.port = [options["socket"]], 0
    else:
        params.hostnames, params.port = ["127.0.0.1"], options["port"]
        params.api_keys = [options["key"]]
    params.cors_origins = ""
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    params.n_parallel = slot_count = options.get("parallel", 1)
    params.n_ctx = options["context_tokens"] * slot_count  # the server divides it among the slots
    params.fit_params = False  # it would load the model twice to guess settings that are known
    # The backend itself saves slots. With its own cache, the server would empty slots without
    # telling the backend, and keep deleted conversations.
    params.cache_ram_mib = 0
    params.ui = False
    # Prompts arrive rendered. The server must not run the model's own template: it is not trusted.
    params.chat_template = "chatml"
    params.verbosity = _WARNING_LOG_LEVEL
    if "pooling" not in options:
        _set_up_chat(params, options)
    else:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type(options["pooling"])
        params.n_batch = params.n_ubatch = options["context_tokens"]  # each text is one batch
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # llama.cpp has logged the reason
        projector = options.get("projector", "none")
        sys.exit(f"{error} (model {options['model']}, projector {projector})")
    print("serving at", server.listening_address, flush=True)  # noqa: T201 # the log of this child
    threading.Event().wait()


def _set_up_chat(params: xllamacpp.CommonParams, options: dict[str, Any]) -> None:
    params.mmproj.path = options.get("projector", "")
    params.kv_unified = False  # slots that share one cache lose their prefixes
    params.n_gpu_layers = choose_gpu_layer_count(_count_gpus(), options["gpu_layers"])
    if "projector" in options:  # some models need a whole image in one batch
        params.mmproj_use_gpu = params.n_gpu_layers > 0
    else:
        params.n_batch = params.n_ubatch = _BATCH_TOKENS
    params.cache_prompt = True
    params.slot_save_path = f"{options['slots_folder']}/"
    params.cache_idle_slots = False


def _count_gpus() -> int:
    types = xllamacpp.ggml_backend_dev_type
    gpu_types = {types.GGML_BACKEND_DEVICE_TYPE_GPU, types.GGML_BACKEND_DEVICE_TYPE_IGPU}
    return sum(device["type"] in gpu_types for device in xllamacpp.get_device_info())


if __name__ == "__main__":
    main()
