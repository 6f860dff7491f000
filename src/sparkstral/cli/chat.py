"""`sparkstral chat`: talk to a model in the terminal, or pipe a question in and get the answer out.

Speaks HTTP like any other client: to a server that runs already, or to one that it starts for itself.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sparkstral.cli import options
from sparkstral.cli.local_server import local_server
from sparkstral.cli.model_folder import with_model
from sparkstral.cli.text import read_json_file, read_stdin, require_text
from sparkstral.errors import ConfigError
from sparkstral.evals.endpoint import Endpoint, EndpointError

_HELP = """\
/effort high|none   reasoning before the answer, or not
/system TEXT        set the system prompt and start anew
/reset              forget the conversation
/exit               leave (also Ctrl-D); Ctrl-C stops an answer"""


def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this and exit.", metavar="[QUESTION]")] = None,
    model: Annotated[str, typer.Option(help="demo, the folder of a checkpoint, or a Hub id.")] = "demo",
    url: Annotated[str | None, typer.Option(help="Talk to this server instead of loading a model.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Key for --url, where the server asks for one.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    effort: Annotated[str, typer.Option(help="Reasoning effort: none or high.")] = "none",
    tools: Annotated[Path | None, typer.Option(help="JSON file with a list of tools in OpenAI's form.")] = None,
    image: Annotated[list[Path] | None, typer.Option("--image", help="Show this image; may be repeated.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    as_json: options.AsJson = False,
    device: options.DeviceChoice = options.Device.auto,
    kernels: options.KernelsChoice = options.Kernels.auto,
) -> None:
    """Talk to the model. With a QUESTION, or with text piped in, answers once and exits."""
    if effort not in ("none", "high"):
        raise ConfigError(f"--effort {effort!r}: the model knows none and high.")
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    piped = "" if is_terminal else read_stdin().strip()
    once = "\n\n".join(text for text in (require_text(question or "", "QUESTION"), piped) if text)
    if not once and not is_terminal:
        raise ConfigError("Nothing to ask: standard input is empty and no QUESTION was given.")
    if as_json and not once:
        raise ConfigError("--json answers one question: give it as an argument or pipe it in.")
    defaults: dict[str, Any] = {"reasoning_effort": effort}
    if tools is not None:
        defaults["tools"] = _read_tools(tools)
    if temperature is not None:
        defaults["temperature"] = temperature
    if max_tokens is not None:
        defaults["max_tokens"] = max_tokens
    images = [_read_image(path) for path in image or ()]
    messages = [{"role": "system", "content": require_text(system, "--system")}] if system else []

    def talk(server_url: str) -> None:
        session = ChatSession(server_url, api_key, messages, defaults, images, as_json=as_json)
        with asyncio.Runner() as runner:
            try:
                if once:
                    runner.run(session.ask_once(once))
                else:
                    session.loop(runner)
            finally:
                runner.run(session.aclose())

    if url is not None:
        talk(url)
    else:
        config = options.engine_config(Path(model), device=device, kernels=kernels)
        with local_server(with_model(config, model)) as server_url:
            talk(server_url)


def _read_image(path: Path) -> dict[str, Any]:
    """A part of a message; what it is, the server finds out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--image {path} cannot be read: {error.strerror}.") from error
    return {"type": "image_url", "image_url": {"url": f"data:;base64,{base64.b64encode(data).decode()}"}}


def _read_tools(path: Path) -> list[Any]:
    tools = read_json_file(path, "--tools")
    if not isinstance(tools, list):
        raise ConfigError(f"--tools {path}: a list of tools is expected, and this is a {type(tools).__name__}.")
    return tools


class ChatSession:
    """A conversation: its messages so far and how they are printed."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        messages: list[dict[str, Any]],
        defaults: dict[str, Any],
        images: list[dict[str, Any]],
        *,
        as_json: bool,
    ) -> None:
        self._endpoint = Endpoint(url, api_key)
        self._messages = messages
        self._defaults = defaults
        self._images = images  # that the next question shows
        self._as_json = as_json
        self._out = Console(highlight=False, soft_wrap=True)

    async def ask_once(self, question: str) -> None:
        self._messages.append(self._question(question))
        if self._as_json:
            print(json.dumps(await self._endpoint.complete(await self._body()), ensure_ascii=False))
        else:
            await self._answer()

    def loop(self, runner: asyncio.Runner) -> None:
        """Ask and answer until /exit or Ctrl-D. Ctrl-C stops an answer; at the prompt it ends the program."""
        self._out.print("[dim]Talk to the model; /help lists the commands.[/dim]")
        with suppress(EOFError):
            while (line := self._out.input("[bold cyan]you ›[/] ").strip()) not in ("/exit", "/quit"):
                if line.startswith("/"):
                    self._command(line)
                elif line:
                    self._turn(runner, line)

    async def aclose(self) -> None:
        await self._endpoint.aclose()

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self._messages = [message for message in self._messages if message["role"] == "system"]
        elif name == "/system":
            self._messages = [{"role": "system", "content": rest}] if rest else []
        elif name == "/effort" and rest in ("high", "none"):
            self._defaults["reasoning_effort"] = rest
        else:
            self._out.print(_HELP, markup=False)

    def _turn(self, runner: asyncio.Runner, text: str) -> None:
        """One question, and the results of the calls that the model makes, until it answers."""
        num_messages = len(self._messages)
        self._messages.append(self._question(text))
        try:
            while calls := self._take(runner.run(self._answer())):
                for call in calls:
                    result = self._out.input(f"[yellow]result of {call['function']['name']} ›[/] ")
                    self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        except (EndpointError, KeyboardInterrupt) as error:
            self._out.print(f"\n{str(error) or 'stopped'}", style="red", markup=False)
            del self._messages[num_messages:]  # the question was not answered: ask it again, or another

    def _question(self, text: str) -> dict[str, Any]:
        images, self._images = self._images, []
        content = [*images, {"type": "text", "text": text}] if images else text
        return {"role": "user", "content": content}

    def _take(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Remember an answer; gives its calls."""
        self._messages.append(answer)
        calls: list[dict[str, Any]] = answer.get("tool_calls", [])
        return calls

    async def _answer(self) -> dict[str, Any]:
        return await self._stream(await self._body())

    async def _body(self) -> dict[str, Any]:
        return {"model": await self._endpoint.model_name(), "messages": self._messages, **self._defaults}

    async def _stream(self, body: dict[str, Any]) -> dict[str, Any]:
        """Print one answer as it comes and return it as a message for the history."""
        answer: dict[str, Any] = {"role": "assistant", "content": ""}
        reasoning = ""
        calls: list[dict[str, Any]] = []
        async with aclosing(self._endpoint.stream(body)) as chunks:
            async for chunk in chunks:
                for choice in chunk["choices"]:
                    delta = choice["delta"]
                    if thought := delta.get("reasoning_content"):
                        reasoning += thought
                        self._print(thought, "dim italic")
                    if text := delta.get("content"):
                        if reasoning and not answer["content"]:
                            self._print("\n")
                        answer["content"] += text
                        self._print(text)
                    for part in delta.get("tool_calls", []):
                        self._add_call_delta(calls, part)
        self._print("\n")
        if reasoning:
            answer["reasoning_content"] = reasoning
        if calls:
            answer["tool_calls"] = calls
        return answer

    def _add_call_delta(self, calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
        function = part["function"]
        if "id" in part:
            calls.append(
                {"id": part["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}}
            )
            self._print(f"\n→ {function['name']} ", "yellow")
        if arguments := function.get("arguments"):
            calls[part["index"]]["function"]["arguments"] += arguments
            self._print(arguments, "yellow")

    def _print(self, text: str, style: str = "") -> None:
        self._out.print(text, style=style, end="", markup=False)
        self._out.file.flush()
