"""When a page of the dashboard first shows the overview's numbers."""

from __future__ import annotations

WATCH = """
    window.numbersAt = null;
    window.files = [];
    new PerformanceObserver((seen) => window.files.push(...seen.getEntries().map(
        ({ name, startTime, responseEnd, transferSize }) => ({ name, startTime, responseEnd, transferSize }))),
    ).observe({ type: "resource", buffered: true });
    new MutationObserver(() => {
        const figure = document.querySelector("#summary .figure");
        if (window.numbersAt === null && figure?.checkVisibility({ visibilityProperty: true })) {
            window.numbersAt = performance.now();
        }
    }).observe(document, { subtree: true, childList: true, attributes: true });
"""
"""Script for a new document: `numbersAt`, in milliseconds since the page was asked for, null until they are seen,
and `files`, what was received by then and later: name, start, end, bytes."""
