"""List the devices of the prebuilt engine: run as a process, it prints one a line.

It runs as a process because the native code loads drivers.
"""

import xllamacpp


def count_gpus() -> int:
    """Count the GPUs, integrated ones too."""
    kinds = xllamacpp.ggml_backend_dev_type
    gpu_types = {kinds.GGML_BACKEND_DEVICE_TYPE_GPU, kinds.GGML_BACKEND_DEVICE_TYPE_IGPU}
    return sum(device["type"] in gpu_types for device in xllamacpp.get_device_info())


def main() -> None:
    """Print the devices with their free memory."""
    for device in xllamacpp.get_device_info():
        free = device["memory_free"] / 1e9
        print(f"{device['name']} ({device['description']}, {free:.1f} GB free)")  # noqa: T201


if __name__ == "__main__":
    main()
