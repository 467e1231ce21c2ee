"""The HTTP routes, one module per domain. Thin: they read the request, call the service, and write its views."""

from fastapi import APIRouter

from api.routes import analysis, cluster, compare, imports, later, presets, probes, results, studies, trials

ROUTERS: tuple[APIRouter, ...] = (
    compare.router,  # first: /studies/compare is no study's id
    later.router,
    imports.router,
    studies.router,
    trials.router,
    results.router,
    analysis.router,
    presets.router,
    cluster.router,
    probes.router,
)
