"""`/` and the files it loads. Boundary: static files and their headers; no key, no database."""

from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(str(files("service.dashboard") / "static"))
PLOTLY = Path(str(files("plotly") / "package_data" / "plotly.min.js"))
# Located without an import, because the package's own modules load Django.
ACE = Path(str(distribution("django-ace").locate_file("django_ace/static/django_ace/ace")))
ACE_FILES = ("ace.js", "ext-language_tools.js", "mode-python.js")
ASSETS = "/dashboard"
VENDOR = f"{ASSETS}/vendor"

REVALIDATED = "no-cache"
KEPT = f"public, max-age={7 * 24 * 3600}"
"""For other people's libraries, which change only with an upgrade."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # plotly.js and Ace write style elements
        "font-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
# The middleware sets `X-Content-Type-Options` on every response.
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def install(app: FastAPI) -> None:
    """Add the page, its files, plotly.js and the code editor Ace."""

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers=HEADERS | {"Cache-Control": REVALIDATED})

    app.mount(f"{VENDOR}/ace", _Vendored(ACE, ACE_FILES))
    app.mount(VENDOR, _Vendored(PLOTLY.parent, (PLOTLY.name,)))
    app.mount(ASSETS, _Assets(directory=STATIC))


class _Assets(StaticFiles):
    """The dashboard's own files, revalidated at each visit."""

    cache_control = REVALIDATED

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS | {"Cache-Control": self.cache_control})
        return response


class _Vendored(_Assets):
    """Some files of a folder of an installed package, and no others."""

    cache_control = KEPT

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        super().__init__(directory=folder)
        self.names = names

    async def get_response(self, path: str, scope: Scope) -> Response:
        return await super().get_response(path if path in self.names else "", scope)
