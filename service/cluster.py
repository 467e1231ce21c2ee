"""What the cluster looks like: nodes, resources, devices and labels, as its dashboard tells."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import RayRefused
from service.ray_connection import RayConnection
from service.ray_http import RayHttp

MAX_NODES = 10_000  # the dashboard's own limit of one answer


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeView(_View):
    """`resources`: Ray's totals, memory in bytes. `devices`: the accelerators' names, empty on a node without any."""

    id: str
    ip: str
    hostname: str | None
    is_head: bool
    state: str  # ALIVE | DEAD
    resources: dict[str, float]
    labels: dict[str, str]
    devices: list[str] = Field(default_factory=list)


class ClusterView(_View):
    """`resources` sums up the nodes that are alive."""

    ray_version: str
    dashboard_url: str
    nodes: list[NodeView]
    resources: dict[str, float]


def describe(connection: RayConnection, timeout: float = 10.0) -> ClusterView:
    """Asks the dashboard. Raises RayUnreachable or RayRefused."""
    with RayHttp(connection, timeout) as ray:
        version = ray.version()
        listed = ray.json(ray.repeated("GET", "/api/v0/nodes", params={"detail": "true", "limit": MAX_NODES}))
        summary = ray.json(ray.repeated("GET", "/nodes", params={"view": "summary"}))
    try:
        machines = {entry["raylet"]["nodeId"]: entry for entry in summary["data"]["summary"] if entry.get("raylet")}
        nodes = [_node(row, machines.get(row["node_id"], {})) for row in listed["data"]["result"]["result"]]
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise RayRefused(f"The Ray {version} dashboard lists its nodes in a form that is not known here.") from error
    return ClusterView(
        ray_version=version,
        dashboard_url=connection.dashboard_url,
        nodes=sorted(nodes, key=lambda node: (not node.is_head, node.ip, node.id)),
        resources=_total([node.resources for node in nodes if node.state == "ALIVE"]),
    )


def _node(row: dict[str, Any], machine: dict[str, Any]) -> NodeView:
    """`row` has the names as they are; `machine` (whose keys the dashboard rewrites to camelCase) the host and GPUs.

    Of a node that has just joined there are no GPUs yet: they come with its agent's first report, seconds later.
    """
    return NodeView(
        id=row["node_id"],
        ip=row["node_ip"],
        hostname=machine.get("raylet", {}).get("nodeManagerHostname") or None,  # registered; the rest is sent later
        is_head=bool(row["is_head_node"]),
        state=row["state"],
        resources={
            name: amount for name, amount in row["resources_total"].items() if not name.startswith("node:")
        },  # node:* is how Ray names a node to its scheduler
        labels=row.get("labels") or {},
        devices=[str(device.get("name")) for device in machine.get("gpus") or []],
    )


def _total(resources: list[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for each in resources for name in each})
    return {name: sum(each.get(name, 0.0) for each in resources) for name in names}
