"""A headless Chromium that opens one page and says what happened, over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import pathlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
DEADLINE_S = 60


def find_browser() -> str | None:
    """Path of an installed Chromium."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@dataclass
class Visit:
    """What a page did."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    """Values of the scripts, in their order."""
    refused: list[tuple[int, str]] = field(default_factory=list)
    """Status and address of every answer from 400 on, but the question for a login."""


def visit(
    page: pathlib.Path | str,
    width: int,
    scripts: list[str],
    profile: pathlib.Path,
    screenshot: pathlib.Path | None = None,
    dark: bool = False,
    login: tuple[str, str] | None = None,
    until: str = "true",
) -> Visit:
    """Open a page at a window width, run the scripts in it and take a picture of all of it.

    Args:
        page: a file or an address.
        login: user and password, as one types them when the browser asks.
        until: a script that is true once the page is there; given up after `DEADLINE_S`, for the
            picture to show what was there instead.
    """
    return asyncio.run(_visit(page, width, scripts, profile, screenshot, dark, login, until))


@contextlib.asynccontextmanager
async def _browser(profile: pathlib.Path) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    browser = find_browser()
    assert browser is not None
    process = subprocess.Popen(
        [browser, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port_file = profile / "DevToolsActivePort"
        async with asyncio.timeout(DEADLINE_S):
            while not port_file.is_file() or "\n" not in port_file.read_text():
                assert process.poll() is None, "the browser ended at once"
                await asyncio.sleep(0.05)
        port = port_file.read_text().split("\n")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                pages = [t for t in await response.json() if t["type"] == "page"]
            url = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                yield socket
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


async def _visit(
    page: pathlib.Path | str,
    width: int,
    scripts: list[str],
    profile: pathlib.Path,
    screenshot: pathlib.Path | None,
    dark: bool,
    login: tuple[str, str] | None,
    until: str,
) -> Visit:
    seen, numbers = Visit(), itertools.count(1)
    async with asyncio.timeout(3 * DEADLINE_S), _browser(profile) as socket:

        async def send(method: str, **params: Any) -> int:
            number = next(numbers)
            await socket.send_json({"id": number, "method": method, "params": params})
            return number

        async def receive() -> dict[str, Any]:
            message: dict[str, Any] = await socket.receive_json()
            params = message.get("params", {})
            match message.get("method"):
                case "Network.requestWillBeSent":
                    seen.requests.append(params["request"]["url"])
                case "Runtime.exceptionThrown":
                    seen.errors.append(str(params["exceptionDetails"]))
                case "Log.entryAdded" if params["entry"]["level"] == "error":
                    seen.errors.append(params["entry"]["text"])
                case "Runtime.consoleAPICalled" if params["type"] == "error":
                    seen.errors.append(str(params["args"]))
                case "Network.responseReceived" if params["response"]["status"] >= 400:
                    seen.refused.append((params["response"]["status"], params["response"]["url"]))
                case "Fetch.requestPaused":
                    await send("Fetch.continueRequest", requestId=params["requestId"])
                case "Fetch.authRequired" if login is not None:
                    words = dict(zip(("username", "password"), login, strict=True))
                    answer = {"response": "ProvideCredentials", **words}
                    await send(
                        "Fetch.continueWithAuth",
                        requestId=params["requestId"],
                        authChallengeResponse=answer,
                    )
            return message

        async def call(method: str, **params: Any) -> dict[str, Any]:
            number = await send(method, **params)
            while (message := await receive()).get("id") != number:
                pass
            assert "error" not in message, message
            result: dict[str, Any] = message["result"]
            return result

        for domain in ("Page", "Network", "Runtime", "Log"):
            await call(f"{domain}.enable")
        await call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        if dark:
            feature = {"name": "prefers-color-scheme", "value": "dark"}
            await call("Emulation.setEmulatedMedia", features=[feature])
        if login is not None:
            await call("Fetch.enable", handleAuthRequests=True, patterns=[{"urlPattern": "*"}])
        url = page if isinstance(page, str) else page.as_uri()
        await call("Page.navigate", url=url)
        while (await receive()).get("method") != "Page.loadEventFired":
            pass

        async def value(script: str) -> Any:
            answer = await call("Runtime.evaluate", expression=script, returnByValue=True)
            assert "exceptionDetails" not in answer, answer
            return answer["result"].get("value")

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                while not await value(until):
                    await asyncio.sleep(0.1)
        seen.results = [await value(script) for script in scripts]
        if screenshot is not None:
            shot = await call("Page.captureScreenshot", captureBeyondViewport=True)
            screenshot.write_bytes(base64.b64decode(shot["data"]))
    return seen
