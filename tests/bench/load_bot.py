"""Start the service for the load harness in `shared/load`, which plays the platform and the model.

    python run.py --bot .../tests/bench/load_bot.py --scenario throughput --set platform=discord

`--set edits=true` shows answers while they grow; `--set budget=1600` counts prompts and cuts them
to so many tokens; `--set python=...` runs another interpreter than the checkout's own.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
Bot: Callable[..., Any]  # put here by the harness before it runs this file


def bot(ctx: Any) -> Any:
    """Say how to start us; `ctx` has the fakes' addresses, their tokens and an empty folder."""
    platform = ctx.params.get("platform", "telegram")
    streams = ctx.params.get("edits", "true") == "true"
    budget = int(ctx.params["budget"]) if "budget" in ctx.params else None
    work = ctx.work.resolve()  # we are started in another folder than the harness
    presets = work / "presets"
    presets.mkdir()
    (presets / "assistant.json").write_text(json.dumps(_preset(budget, streams=streams)))
    python = ctx.params.get("python") or _own_python()
    return Bot(  # noqa: F821
        label=f"troupe {platform}{' edits' if streams else ''}",
        platform=platform,
        cmd=[python, "-m", "bot", "run"],
        cwd=str(CHECKOUT),
        env={
            "TROUPE_DATA_DIR": str(work / "data"),
            "TROUPE_PRESETS_DIR": str(presets),
            "TROUPE_PROVIDERS__TEST__BASE_URL": ctx.llm_base,
            "TROUPE_DELIVERY__SETTLE_SECONDS": "1",
            "TROUPE_DELIVERY__PACING": "learned",  # the load is above what real platforms take
            "TROUPE_CONSOLE__PORT": "0",
            "TROUPE_LIMITS__ANSWERS_PER_PERSON": "0",
            "TROUPE_LIMITS__ANSWERS_PER_CHANNEL": "0",
            "TROUPE_LIMITS__WAITING_IN_CONVERSATION": "0",
            **_platform(ctx, platform),
        },
    )


def _preset(budget: int | None, *, streams: bool) -> dict[str, object]:
    return {
        "name": "assistant",
        "provider": "test",
        "model": "fake",
        "system": "You are a helpful assistant.",
        "max_input_tokens": budget,
        "stream": streams,
    }


def _platform(ctx: Any, platform: str) -> dict[str, str]:
    if platform == "discord":
        return {
            "TROUPE_DISCORD__TOKEN": ctx.discord_token,
            "TROUPE_DISCORD__API_BASE": ctx.discord_base,
            "TROUPE_DISCORD__GATEWAY_URL": ctx.base.replace("http://", "ws://") + "/gateway",
        }
    return {
        "TROUPE_TELEGRAM__TOKEN": ctx.telegram_token,
        "TROUPE_TELEGRAM__API_BASE": ctx.telegram_base.removesuffix("/bot"),
    }


def _own_python() -> str:
    own = CHECKOUT / ".venv/bin/python"
    return str(own) if own.exists() else sys.executable
