"""The dashboard's page and files, as the API serves them."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from api_under_test import ApiUnderTest, problem_of
from oakum_service.dashboard.routes import files_tag


class TestDashboard:
    """The page needs no token; what it shows it asks the API for, with the token that the user has given it."""

    @pytest.fixture
    def client(self, api: ApiUnderTest) -> TestClient:
        return api.anonymous

    def test_the_page_lets_nothing_in_from_elsewhere(self, client: TestClient) -> None:
        response = client.get("/")
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith("text/html")
        directives = dict(
            directive.split(" ", 1) for directive in response.headers["Content-Security-Policy"].split("; ")
        )
        assert directives == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' blob:",
            "connect-src": "'self'",
            "form-action": "'none'",
            "base-uri": "'none'",
            "frame-ancestors": "'none'",
        }
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"

    @pytest.mark.parametrize("path", ["/static/style.css", "/static/js/main.js", "/static/plotly.min.js"])
    def test_its_files_are_served_under_the_same_policy(self, client: TestClient, path: str) -> None:
        response = client.get(path)
        assert response.status_code == 200
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]

    @pytest.mark.parametrize(
        ("path", "kind"),
        [("style.css", "text/css"), ("js/main.js", "text/javascript"), ("plotly.min.js", "text/javascript")],
    )
    def test_a_file_by_its_hash_is_the_same_compressed_or_not(
        self, client: TestClient, path: str, kind: str
    ) -> None:
        packed = client.get(f"/static/v-{files_tag()}/{path}", headers={"Accept-Encoding": "gzip"})
        plain = client.get(f"/static/{path}", headers={"Accept-Encoding": "identity"})
        assert packed.headers["Content-Encoding"] == "gzip"
        assert "Content-Encoding" not in plain.headers
        assert packed.text == plain.text
        assert packed.headers["Content-Type"].startswith(kind)
        assert "immutable" in packed.headers["Cache-Control"]
        assert packed.headers["Content-Security-Policy"] == plain.headers["Content-Security-Policy"]

    @pytest.mark.parametrize(
        "path", ["/static/..%2froutes.py", "/static/%2e%2e/routes.py", "/static/js", "/static/%00", "/static/none"]
    )
    def test_nothing_else_is(self, client: TestClient, path: str) -> None:
        problem_of(client.get(path), 404)
