"""`troupe model`: bring models to this machine, and say what they are and want."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from bot.backends.llama_cpp.hardware import list_devices
from bot.backends.model_files import hub
from bot.backends.model_files import store as model_store
from bot.backends.model_files.memory import free_bytes
from bot.backends.model_files.metadata import IS_PROJECTOR_MESSAGE, ModelMetadata, read_metadata
from bot.errors import SettingsError
from bot.settings import ProviderSettings, read_settings

model_app = typer.Typer(no_args_is_help=True, help="Models that run on this machine.")


@model_app.command("pull")
def pull_model(
    source: Annotated[
        str | None,
        typer.Argument(
            help="a GGUF of yours, or OWNER/NAME[:FILE or a part of its name] on a hub; "
            "without: SmolLM2"
        ),
    ] = None,
    sha256: Annotated[str | None, typer.Option(help="what the file must hash to")] = None,
) -> None:
    """Bring a model into the data directory, checked by its hash, and say what it is."""
    folder = read_settings().data_dir
    wanted = hub.parse_source(source) if source and not Path(source).exists() else None
    if source is None:
        model = asyncio.run(model_store.pull_default_model(folder, _progress))
    elif wanted is not None:
        model = asyncio.run(hub.pull_model(wanted, folder, _progress, sha256))
    else:
        model = model_store.import_model(Path(source), folder, sha256)
    _tell(f"the model is in {model}")
    _tell_facts(model)


@model_app.command("list")
def list_models() -> None:
    """Name the models in the data directory."""
    for model in model_store.list_models(read_settings().data_dir):
        line = f"{model.name}  {model.size_bytes / 1e6:.0f} MB"
        try:
            facts = read_metadata(model.path)
        except SettingsError:
            _tell(f"{line}  cannot be read")
            continue
        parts = [line, facts.quantization, _count(facts.parameters)]
        _tell("  ".join(part for part in parts if part))


@model_app.command("info")
def show_model(
    name: Annotated[str, typer.Argument(help="a model's name, or its file")] = "default",
) -> None:
    """Say what a model is, and whether this machine has the memory for it."""
    settings = read_settings()
    file = Path(name)
    is_file = file.suffix.lower() == ".gguf" and file.is_file()
    _tell_facts(file if is_file else model_store.find_model(name, _local(), settings.data_dir))


def _tell_facts(model: Path) -> None:
    facts = read_metadata(model)
    kind = " ".join(
        filter(None, (facts.architecture, _count(facts.parameters), facts.quantization))
    )
    told = {
        "name": facts.name or model.stem,
        "sha256": model_store.sha256_of(model),
        "licence": facts.licence or "not said in the file; look at where it comes from",
    }
    if facts.is_projector:
        told |= {"kind": kind, "use": IS_PROJECTOR_MESSAGE}
    else:
        told |= {
            "template": facts.template,
            "kind": kind,
            "context": f"{facts.context_tokens} tokens at most",
            "memory": "; ".join(_memory(facts, _local())),
            "devices": "; ".join(list_devices())
            or "the engine that comes with Troupe does not run",
        }
    for name, value in told.items():
        _tell(f"  {name:<9} {value}")


def _memory(facts: ModelMetadata, settings: ProviderSettings) -> Iterator[str]:
    wanted, free = facts.estimate_memory_bytes(settings), free_bytes()
    chats = "conversation" if settings.parallel == 1 else "conversations"
    yield (
        f"about {_size(wanted)} with {settings.parallel} {chats} of "
        f"{settings.context_tokens} tokens"
    )
    if free is None:
        yield "what this machine has free is not known"
    elif wanted > free:
        yield (
            f"this machine has only {_size(free)} free: take a smaller model, or lower "
            "TROUPE_PROVIDERS__LOCAL__CONTEXT_TOKENS or __PARALLEL"
        )
    else:
        yield f"this machine has {_size(free)} free"
    if 0 < facts.context_tokens < settings.context_tokens:
        yield f"CONTEXT_TOKENS is more than its {facts.context_tokens}"


def _local() -> ProviderSettings:
    return read_settings().providers["local"]


def _count(parameters: int) -> str:
    if parameters >= 1e9:
        return f"{parameters / 1e9:.1f} B parameters"
    return f"{parameters / 1e6:.0f} M parameters" if parameters else ""


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")


def _progress(text: str) -> None:
    sys.stderr.write(f"troupe: {text}\n")
