"""The dashboard's page and files, as the API serves them."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from api_under_test import ApiUnderTest, problem_of


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
            "img-src": "'self'",
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
        "path", ["/static/..%2froutes.py", "/static/%2e%2e/routes.py", "/static/js", "/static/%00", "/static/none"]
    )
    def test_nothing_else_is(self, client: TestClient, path: str) -> None:
        problem_of(client.get(path), 404)
