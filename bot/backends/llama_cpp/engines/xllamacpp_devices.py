"""Which devices the prebuilt engine sees: run as a process, it names one a line.

A process of its own, because the engine's native code looks for drivers.
"""

import xllamacpp


def gpus() -> int:
    """How many graphics processors, also those in the processor, there are to compute on."""
    kinds = xllamacpp.ggml_backend_dev_type
    graphical = {kinds.GGML_BACKEND_DEVICE_TYPE_GPU, kinds.GGML_BACKEND_DEVICE_TYPE_IGPU}
    return sum(device["type"] in graphical for device in xllamacpp.get_device_info())


def main() -> None:
    """Print the devices."""
    for device in xllamacpp.get_device_info():
        free = device["memory_free"] / 1e9
        print(f"{device['name']} ({device['description']}, {free:.1f} GB free)")  # noqa: T201


if __name__ == "__main__":
    main()
