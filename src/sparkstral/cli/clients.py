"""Settings of programs that talk to a server like this one, as texts with gaps.

Owns what each program wants to be told, and where. In a text, {url} is the server's address, {model} the served name,
{length} the context in tokens, {most} what one answer should not exceed, {key} the key, {authorization} the header with
it and {body} a request; each is quoted as the text's kind of file has it, so that no name or key can be more than that.
In files of all kinds but shells' and people's, a gap of a text stands in double quotes. Sources: the programs' own
documentation as of November 2026. Tests run curl, LangChain, LiteLLM and llm with these settings, and no others.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`place` says where `text` belongs, `note` what else is good to know."""

    title: str
    place: str
    kind: str  # of the text, for highlighting
    text: str
    note: str = ""

    def filled(self, url: str, model: str, length: int, key: str) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}]}
        values = {
            "url": url,
            "model": model,
            "length": str(length),
            "most": str(length // 4),
            "key": key,
            "authorization": f"Authorization: Bearer {key}",
            "body": json.dumps(body),
        }
        return re.sub(r"\{(\w+)\}", lambda gap: _quoted(values[gap[1]], self.kind), self.text)

    def placed(self, key: str) -> str:
        """`place`, which may hold a command with the key."""
        return self.place.replace("{key}", shlex.quote(key))


def _quoted(value: str, kind: str) -> str:
    """`value` as it stands in a shell's command, in the double quotes of the other kinds, or before people's eyes."""
    if kind == "text":
        return value
    if kind == "sh":
        return shlex.quote(value)
    return json.dumps(value, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


_OPENCODE = {
    "$schema": "https://opencode.ai/config.json",
    "model": "sparkstral/{model}",
    "provider": {
        "sparkstral": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "sparkstral",
            "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
            "models": {
                "{model}": {
                    "name": "{model}",
                    "reasoning": True,
                    "tool_call": True,
                    "limit": {"context": "LENGTH", "output": "MOST"},
                }
            },
        }
    },
}

CLIENTS: dict[str, ClientSettings] = {
    "claude-code": ClientSettings(
        "Claude Code",
        "in the shell that starts claude",
        "sh",
        """\
export ANTHROPIC_BASE_URL={url}
export ANTHROPIC_AUTH_TOKEN={key}
unset ANTHROPIC_API_KEY
export ANTHROPIC_MODEL={model}
export ANTHROPIC_DEFAULT_OPUS_MODEL={model}
export ANTHROPIC_DEFAULT_SONNET_MODEL={model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL={model}
export CLAUDE_CODE_ATTRIBUTION_HEADER=0
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
export CLAUDE_CODE_MAX_OUTPUT_TOKENS={most}
claude
""",
        "Its tool WebSearch runs on Anthropic's servers and is refused here.",
    ),
    "codex": ClientSettings(
        "Codex CLI",
        "~/.codex/sparkstral.config.toml; then: SPARKSTRAL_API_KEY={key} codex --profile sparkstral",
        "toml",
        """\
model = "{model}"
model_provider = "sparkstral"
model_context_window = {length}

[model_providers.sparkstral]
name = "sparkstral"
base_url = "{url}/v1"
env_key = "SPARKSTRAL_API_KEY"
wire_api = "responses"
""",
        "Older versions read profiles from config.toml itself: there, put it at the top of ~/.codex/config.toml.",
    ),
    "opencode": ClientSettings(
        "opencode",
        "opencode.json in the project, or ~/.config/opencode/opencode.json",
        "json",
        json.dumps(_OPENCODE, indent=2).replace('"LENGTH"', "{length}").replace('"MOST"', "{most}") + "\n",
    ),
    "vibe": ClientSettings(
        "Mistral Vibe",
        "~/.vibe/config.toml; then: SPARKSTRAL_API_KEY={key} vibe",
        "toml",
        """\
active_model = "sparkstral"

[[providers]]
name = "sparkstral"
api_base = "{url}/v1"
api_key_env_var = "SPARKSTRAL_API_KEY"
api_style = "openai"
backend = "generic"

[[models]]
name = "{model}"
provider = "sparkstral"
alias = "sparkstral"
input_price = 0.0
output_price = 0.0
""",
    ),
    "cline": ClientSettings(
        "Cline",
        "Cline's settings: API Provider “OpenAI Compatible”",
        "text",
        """\
Base URL            {url}/v1
API Key             {key}
Model ID            {model}
Context Window Size {length}
Supports Images     off
""",
    ),
    "continue": ClientSettings(
        "Continue",
        "~/.continue/config.yaml",
        "yaml",
        """\
name: sparkstral
version: 1.0.0
schema: v1
models:
  - name: "{model}"
    provider: openai
    model: "{model}"
    apiBase: "{url}/v1"
    apiKey: "{key}"
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: {length}
      maxTokens: {most}
""",
    ),
    "open-webui": ClientSettings(
        "Open WebUI",
        "in the shell that starts it",
        "sh",
        """\
export OPENAI_API_BASE_URL={url}/v1
export OPENAI_API_KEY={key}
export ENABLE_OLLAMA_API=false
open-webui serve --port 3000
""",
        "In a container the address of this machine is another: start the server with --host 0.0.0.0 and a key.",
    ),
    "litellm": ClientSettings(
        "LiteLLM",
        "config.yaml; then: litellm --config config.yaml",
        "yaml",
        """\
model_list:
  - model_name: "{model}"
    litellm_params:
      model: "openai/{model}"
      api_base: "{url}/v1"
      api_key: "{key}"
    model_info:
      max_input_tokens: {length}
      supports_function_calling: true
""",
    ),
    "langchain": ClientSettings(
        "LangChain",
        "Python, with langchain-openai",
        "python",
        """\
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="{model}", base_url="{url}/v1", api_key="{key}")
print(model.invoke("Say hello.").content)
""",
        "langchain-anthropic works too: ChatAnthropic(model=…, base_url=… without /v1, api_key=…).",
    ),
    "llm": ClientSettings(
        "llm",
        "extra-openai-models.yaml beside the file that `llm logs path` names; then: llm -m sparkstral 'Say hello.'",
        "yaml",
        """\
- model_id: sparkstral
  model_name: "{model}"
  api_base: "{url}/v1"
  api_key_name: sparkstral
  supports_tools: true
  supports_schema: true
""",
        "The key: llm keys set sparkstral (any word, if the server has none).",
    ),
    "curl": ClientSettings(
        "curl",
        "in any shell",
        "sh",
        """\
curl {url}/v1/chat/completions \\
  -H 'Content-Type: application/json' \\
  -H {authorization} \\
  -d {body}
""",
    ),
}
