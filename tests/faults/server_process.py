"""A server's inside as a process of its own, to be killed: a database, a local head, a dispatcher with a scripted job.

Arguments: the data directory and the script as JSON. Prints the study's id and the head's temporary directory.
"""

import json
import sys
from pathlib import Path

from service.ray_head import LocalHead
from tests.integration.running_server import running_server
from tests.integration.scripted_job import package
from tests.service.factories import spec

folder = Path(sys.argv[1])
script = {
    int(attempt): {int(trial): fate for trial, fate in fates.items()}
    for attempt, fates in json.loads(sys.argv[2]).items()
}
head = LocalHead(folder, num_cpus=2)
with running_server(folder, head, package(script)) as server:
    study, _ = server.studies.create(spec(micro_batches=(1, 2, 4, 8)))
    server.wait("the head is up", head.is_alive, 150)
    print(study.id, head._temp_dir, flush=True)
    sys.stdin.read()
head.stop()
