"""`/docs`: Swagger UI for the service's OpenAPI document, without files from other hosts."""

from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

PAGE = "/docs"
ASSETS = "docs/assets"
"""Relative to the page, so that a reverse proxy may add a path prefix."""


def install(app: FastAPI) -> None:
    """Add the page and the files it loads."""

    @app.get(PAGE, include_in_schema=False)
    def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url=str(app.openapi_url).removeprefix("/"),
            title=app.title,
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
        )

    app.mount(f"/{ASSETS}", StaticFiles(directory=str(files("fastapi_offline") / "static")))
