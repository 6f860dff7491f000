"""Write docs/clients.md from the settings that `sparkstral connect` prints: python -m tools.make_clients_doc."""

from __future__ import annotations

from pathlib import Path

from sparkstral.cli.clients import CLIENTS
from sparkstral.cli.connect import NO_KEY
from sparkstral.config import DEFAULT_HOST, DEFAULT_PORT, SERVED_MODEL_NAME

FILE = Path(__file__).parents[1] / "docs" / "clients.md"
HEAD = """\
# Clients

`sparkstral connect CLIENT` prints these settings with the name, the context length and the address of the server that
is running (`--url`, `--api-key`). Here they stand for `sparkstral serve` as it starts by itself, with a context of
262,144 tokens. A server without keys takes any word for one. Our tests run curl, LangChain, LiteLLM and llm with these
settings; those of the other programs follow their documentation and were not run. This file is made by
`python -m tools.make_clients_doc`.

The protocols: OpenAI's chat completions, completions and responses under `http://127.0.0.1:8002/v1`, Anthropic's
messages under `http://127.0.0.1:8002`. [api.md](api.md) tells what each field does.
"""


def document() -> str:
    sections = [HEAD]
    for name, settings in CLIENTS.items():
        text = settings.filled(f"http://{DEFAULT_HOST}:{DEFAULT_PORT}", SERVED_MODEL_NAME, 262_144, NO_KEY)
        place = settings.placed(NO_KEY)
        note = f"\n{settings.note}\n" if settings.note else ""
        sections.append(
            f"## {settings.title}\n`sparkstral connect {name}`: {place}\n\n```{settings.kind}\n{text}```\n{note}"
        )
    return "\n".join(sections)


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
