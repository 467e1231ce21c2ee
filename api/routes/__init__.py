"""The HTTP routes, one module per domain. Thin: they read the request, call the service, and write its views."""

from fastapi import APIRouter

from api.routes import analysis, cluster, later, presets, probes, results, studies, trials

ROUTERS: tuple[APIRouter, ...] = (
    later.router,  # first: /studies/compare is no study's id
    studies.router,
    trials.router,
    results.router,
    analysis.router,
    presets.router,
    cluster.router,
    probes.router,
)
