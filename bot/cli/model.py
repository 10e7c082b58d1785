"""`troupe model`: download, list, and describe local models."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from bot.backends.llama_cpp.engine import limit_slots_to_engine
from bot.backends.llama_cpp.hardware import count_free_bytes
from bot.backends.llama_cpp.settings import LlamaCppSettings, find_local_settings
from bot.backends.model_files import hub
from bot.backends.model_files import store as model_store
from bot.backends.model_files.gguf import PROJECTOR_ONLY_MESSAGE, ModelMetadata, read_metadata
from bot.cli.text_io import print_line, print_progress, read_bytes
from bot.cli.typer_apps import create_command_app
from bot.importers.file_kinds import MAX_BYTES_READ, FileKind, check_file_kind
from bot.settings import read_settings

app = create_command_app("Download, list, and describe local models.")


@app.command("pull")
def pull_model(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A GGUF file, or OWNER/NAME[:FILE] on Hugging Face, where FILE may be part of a"
            " file name; default: SmolLM2."
        ),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(help="The SHA-256 hash that the file must have.")
    ] = None,
) -> None:
    """Copy or download a model into the data directory, check its hash, and describe it."""
    folder = read_settings().data_dir
    hub_source = hub.parse_model_source(source) if source and not Path(source).exists() else None
    if source is None:
        model = asyncio.run(model_store.pull_default_model(folder, print_progress))
    elif hub_source is not None:
        model = asyncio.run(hub.pull_model(hub_source, folder, print_progress, sha256))
    else:
        if Path(source).is_file():
            check_file_kind(read_bytes(Path(source), MAX_BYTES_READ), Path(source), {FileKind.GGUF})
        model = model_store.import_model(Path(source), folder, sha256)
    print_line(f"the model is in {model}")
    _print_model_details(model)


@app.command("list")
def list_models() -> None:
    """List the models in the data directory."""
    for model in model_store.list_models(read_settings().data_dir):
        print_line(f"{model.stem}  {_format_size(model.stat().st_size)}")


@app.command("info")
def show_model(
    name: Annotated[str, typer.Argument(help="A model's name, or its file.")] = "default",
) -> None:
    """Describe a model, and show whether it fits into this machine's memory."""
    settings = read_settings()
    file = Path(name)
    is_gguf = file.suffix.lower() == ".gguf" and file.is_file()
    _print_model_details(
        file if is_gguf else model_store.find_model(name, _read_local_settings(), settings.data_dir)
    )


def _print_model_details(model: Path) -> None:
    metadata = read_metadata(model)
    lines = {
        "name": metadata.name or model.stem,
        "sha256": model_store.compute_sha256(model),
        "license": metadata.license or "not stated in the file; see the model's page",
    }
    if metadata.is_projector:
        lines |= {"kind": metadata.architecture, "use": PROJECTOR_ONLY_MESSAGE}
    else:
        lines |= {
            "template": metadata.template_description,
            "kind": metadata.architecture,
            "context": f"at most {metadata.context_tokens} tokens",
            "memory": "; ".join(_describe_memory(metadata, _read_local_settings())),
        }
    for name, value in lines.items():
        print_line(f"  {name:<9} {value}")


def _describe_memory(metadata: ModelMetadata, settings: LlamaCppSettings) -> Iterator[str]:
    needed_bytes, free_bytes = metadata.estimate_memory_bytes(settings), count_free_bytes()
    noun = "conversation" if settings.parallel == 1 else "conversations"
    yield (
        f"about {_format_size(needed_bytes)} with {settings.parallel} {noun} of "
        f"{settings.context_tokens} tokens"
    )
    if free_bytes is None:
        yield "this machine's free memory is unknown"
    elif needed_bytes > free_bytes:
        yield (
            f"this machine has only {_format_size(free_bytes)} free: choose a smaller model, or "
            "lower TROUPE_PROVIDERS__LOCAL__CONTEXT_TOKENS or TROUPE_PROVIDERS__LOCAL__PARALLEL"
        )
    else:
        yield f"this machine has {_format_size(free_bytes)} free"
    if 0 < metadata.context_tokens < settings.context_tokens:
        name = "TROUPE_PROVIDERS__LOCAL__CONTEXT_TOKENS"
        yield f"{name} is above the model's limit of {metadata.context_tokens} tokens"


def _read_local_settings() -> LlamaCppSettings:
    return limit_slots_to_engine(find_local_settings(read_settings().providers))


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
