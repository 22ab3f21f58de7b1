"""The server the conformance suite talks to: Herdbook's own, plus what the suite's scenarios ask for.

`build_server` and `http_app` are the product's, so Host and Origin checks, the body limit and the five
tools are under test; the `test_*` tools, `test://` resources and prompts are made up here because the
suite calls them by name. Only the SDK's public interface is used: what Herdbook does not offer
(subscriptions, log levels, resumable streams) is left out and explained in the baseline files.

    python tests/conformance/fixture_server.py     # prints the URL on standard output, serves until killed
"""

from __future__ import annotations

import base64
import json
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from mcp.server import MCPServer, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Context, UserMessage
from mcp.shared.exceptions import MCPError
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

from mcp_server import Config, build_server
from mcp_server.http import http_app

HOST = "127.0.0.1"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="


def main() -> None:
    """Serve on a free loopback port until killed."""
    with tempfile.TemporaryDirectory(prefix="herdbook-conformance-") as folder:
        config = replace(Config.from_environment({}), home=Path(folder), dense=False)
        server = build_server(config)
        for add in (_contents, _conversations, _rounds, _schemas, _resources, _prompts):
            add(server)
        listener = socket.create_server((HOST, 0))
        port = listener.getsockname()[1]
        print(f"http://{HOST}:{port}/mcp", flush=True)
        app = http_app(server, HOST, port, None)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none")).run(sockets=[listener])


def _contents(server: MCPServer[Any]) -> None:
    """Tools that answer with each kind of content, with an error, with progress and with log lines."""
    image = ImageContent(type="image", data=PNG, mime_type="image/png")

    @server.tool(description="simple text")
    def test_simple_text() -> str:
        return "This is a simple text response for testing."

    @server.tool(description="image content")
    def test_image_content() -> list[ImageContent]:
        return [image]

    @server.tool(description="audio content")
    def test_audio_content() -> list[AudioContent]:
        return [AudioContent(type="audio", data=WAV, mime_type="audio/wav")]

    @server.tool(description="embedded resource")
    def test_embedded_resource() -> list[EmbeddedResource]:
        return [_embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]

    @server.tool(description="multiple content types")
    def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
        return [
            TextContent(type="text", text="Multiple content types test:"),
            image,
            _embedded("test://mixed-content-resource", "application/json", '{"test": "data", "value": 123}'),
        ]

    @server.tool(description="error handling")
    def test_error_handling() -> str:
        raise RuntimeError("This tool intentionally returns an error for testing")

    @server.tool(description="tool with progress")
    async def test_tool_with_progress(ctx: Context) -> str:
        for step in (0, 50, 100):
            await ctx.report_progress(step, 100, f"Completed step {step} of 100")
        return "done"

    @server.tool(description="tool with logging")
    async def test_tool_with_logging(ctx: Context) -> str:
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(text)
        return "Tool with logging executed successfully"

    @server.tool(description="reconnection")
    async def test_reconnection(ctx: Context) -> str:
        await ctx.close_sse_stream()
        return "Reconnection test completed"

    @server.completion()
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        return Completion(values=[], total=0, has_more=False)


class Reply(BaseModel):
    """What `test_elicitation` asks for."""

    response: str


class Defaults(BaseModel):
    """A default for every primitive type (SEP-1034)."""

    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field(default="active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


def _titled(**names: str) -> list[Any]:
    return [{"const": value, "title": title} for value, title in names.items()]


class Enums(BaseModel):
    """Every way to write an enumeration (SEP-1330); the names are the suite's."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})
    titledSingle: str = Field(json_schema_extra={"oneOf": _titled(low="Low", medium="Medium", high="High")})
    untitledMulti: list[str] = Field(
        json_schema_extra={"items": {"type": "string", "enum": ["read", "write", "execute"]}}
    )
    titledMulti: list[str] = Field(
        json_schema_extra={"items": {"anyOf": _titled(feature="New Feature", bug="Bug Fix", docs="Documentation")}}
    )
    legacyEnum: str = Field(
        json_schema_extra={"enum": ["small", "medium", "large"], "enumNames": ["Small", "Medium", "Large"]}
    )


def _conversations(server: MCPServer[Any]) -> None:
    """Tools that ask the client back within one call, as protocol versions up to 2025-11-25 do."""

    @server.tool(description="sampling")
    async def test_sampling(prompt: str, ctx: Context) -> str:
        message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
        result = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
        return f"LLM response: {getattr(result.content, 'text', '')}"

    async def ask(ctx: Context, message: str, schema: type[BaseModel]) -> str:
        result = await ctx.elicit(message, schema)
        content = result.data.model_dump_json() if result.action == "accept" else "{}"
        return f"action={result.action}, content={content}"

    @server.tool(description="elicitation")
    async def test_elicitation(message: str, ctx: Context) -> str:
        return "User response: " + await ask(ctx, message, Reply)

    @server.tool(description="elicitation sep1034 defaults")
    async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
        return "Elicitation result: " + await ask(ctx, "Please fill in", Defaults)

    @server.tool(description="elicitation sep1330 enums")
    async def test_elicitation_sep1330_enums(ctx: Context) -> str:
        return "Elicitation completed: " + await ask(ctx, "Please choose", Enums)


def _form(message: str, field: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))


def _field(answer: Any, name: str) -> object:
    return answer.content.get(name) if isinstance(answer, ElicitResult) and answer.content else None


def _rounds(server: MCPServer[Any]) -> None:
    """Tools that answer "input required" and are called again, as protocol version 2026-07-28 does (SEP-2322)."""

    @server.tool(description="input required result elicitation")
    def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
        given = ctx.input_responses or {}
        if "user_name" in given:
            return f"Hello, {_field(given['user_name'], 'name')}!"
        return InputRequiredResult(input_requests={"user_name": _form("What is your name?", "name")})

    @server.tool(description="input required result sampling")
    def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
        given = (ctx.input_responses or {}).get("capital_question")
        if isinstance(given, CreateMessageResult):
            return f"Model said: {getattr(given.content, 'text', '')}"
        return InputRequiredResult(input_requests={"capital_question": _sample("What is the capital of France?")})

    @server.tool(description="input required result list roots")
    def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
        given = (ctx.input_responses or {}).get("client_roots")
        if isinstance(given, ListRootsResult):
            return f"Client exposed {len(given.roots)} root(s)."
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})

    @server.tool(description="input required result request state")
    def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
        if "confirm" in (ctx.input_responses or {}) and ctx.request_state == "asked":
            return "state-ok: confirmation received"
        return InputRequiredResult(input_requests={"confirm": _form("Sure?", "ok", "boolean")}, request_state="asked")

    @server.tool(description="input required result multiple inputs")
    def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
        asked = {
            "user_name": _form("What is your name?", "name"),
            "greeting": _sample("Say hello"),
            "client_roots": ListRootsRequest(),
        }
        if asked.keys() <= (ctx.input_responses or {}).keys():
            return "All inputs received."
        return InputRequiredResult(input_requests=asked, request_state="all three")

    @server.tool(description="input required result multi round")
    def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
        state = json.loads(ctx.request_state or "{}")
        given = ctx.input_responses or {}
        if state.get("round") == 2 and "step2" in given:
            return f"{state['name']} likes {_field(given['step2'], 'color')}."
        if state.get("round") == 1 and "step1" in given:
            state = {"round": 2, "name": _field(given["step1"], "name")}
            asked = {"step2": _form("Step 2: what is your favourite color?", "color")}
        else:
            state = {"round": 1}
            asked = {"step1": _form("Step 1: what is your name?", "name")}
        return InputRequiredResult(input_requests=asked, request_state=json.dumps(state))

    @server.tool(description="input required result tampered state")
    def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
        if ctx.request_state is not None:
            return f"state-ok: {ctx.request_state}"
        return InputRequiredResult(input_requests={"confirm": _form("Sure?", "ok", "boolean")}, request_state="round-1")

    @server.tool(description="input required result capabilities")
    def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
        able = ctx.client_capabilities
        asked: dict[str, Any] = {}
        if able is None or able.sampling is not None:
            asked["sample"] = _sample("Say hello")
        if able is None or able.elicitation is not None:
            asked["ask"] = _form("What is your name?", "name")
        return InputRequiredResult(input_requests=asked, request_state="by capability")

    @server.tool(description="missing capability")
    def test_missing_capability(ctx: Context) -> str:
        able = ctx.session.client_capabilities
        if able is None or able.sampling is None:
            needed = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "this tool needs the client to offer sampling", needed)
        return "the client offers sampling"

    @server.prompt(description="input required result prompt")
    def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | InputRequiredResult:
        given = ctx.input_responses or {}
        if "user_context" in given:
            return [_said(f"Use the following context: {_field(given['user_context'], 'context')}")]
        return InputRequiredResult(input_requests={"user_context": _form("Which context?", "context")})


SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
"""Every keyword the suite looks for (SEP-1613, SEP-2106)."""


def _schemas(server: MCPServer[Any]) -> None:
    """A tool whose schema uses all of JSON Schema 2020-12, and one whose argument is mirrored in a header (SEP-2243)."""

    @server.tool(description="json schema 2020 12 tool")
    def json_schema_2020_12_tool() -> str:
        return "done"

    @server.tool(description="x mcp header")
    def test_x_mcp_header(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "<none>",
    ) -> str:
        return f"region={region}"

    async def with_schema(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        if ctx.method == "tools/list" and isinstance(result, dict):
            tool = next(tool for tool in result["tools"] if tool["name"] == "json_schema_2020_12_tool")
            tool["inputSchema"] = SCHEMA_2020_12
        return result

    server.middleware.append(with_schema)


def _resources(server: MCPServer[Any]) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return base64.b64decode(PNG)

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    @server.resource("test://watched-resource")
    def watched() -> str:
        return "Watched resource content"


def _prompts(server: MCPServer[Any]) -> None:
    @server.prompt(description="simple prompt")
    def test_simple_prompt() -> list[UserMessage]:
        return [_said("This is a simple prompt for testing.")]

    @server.prompt(description="prompt with arguments")
    def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
        return [_said(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]

    @server.prompt(description="prompt with embedded resource")
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        resource = _embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return [UserMessage(content=resource), _said("Please process the embedded resource above.")]

    @server.prompt(description="prompt with image")
    def test_prompt_with_image() -> list[UserMessage]:
        image = ImageContent(type="image", data=PNG, mime_type="image/png")
        return [UserMessage(content=image), _said("Please analyze the image above.")]


def _embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


def _said(text: str) -> UserMessage:
    return UserMessage(content=TextContent(type="text", text=text))


if __name__ == "__main__":
    main()
