"""`/docs`: Swagger UI for the service's OpenAPI document, without files from other hosts."""

from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

PAGE = "/docs"
ASSETS = "/docs/assets"


def install(app: FastAPI) -> None:
    """Add the page and the files it loads."""

    @app.get(PAGE, include_in_schema=False)
    def page(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "").rstrip("/")
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{root}{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{root}{ASSETS}/favicon.png",
        )

    app.mount(ASSETS, StaticFiles(directory=str(files("fastapi_offline") / "static")))
