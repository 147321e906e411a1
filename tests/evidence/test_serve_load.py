"""The client of the load benchmark, and that no request is left without an answer when others leave."""

import json
import struct

from scripts import script
from served import FEATURES, awaited, feature_model, running, service_of

load_client = script("benchmarks/load_client.py")


def test_all_are_answered_while_others_leave(tmp_path):
    body = json.dumps({"features": [[0.5] * FEATURES]}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    request = head % len(body) + body
    path = tmp_path / "requests"
    path.write_bytes(2 * (struct.pack("<Q", len(request)) + request))
    requests = load_client.read_requests(path)
    assert requests == [request, request]
    with running(service_of(feature_model())) as url:
        port = int(url.rsplit(":", 1)[1])
        leaving = load_client.Load(port, requests, wanted=120, leave=4, pause=0.0)
        awaited(load_client.run(leaving, 16))
        staying = load_client.Load(port, requests, wanted=120, leave=0, pause=0.0)
        awaited(load_client.run(staying, 16))
    assert leaving.gone == 30
    assert leaving.cut == staying.cut == leaving.refused == staying.refused == 0
    assert staying.statuses == {200: 120}
    assert set(leaving.statuses) == {200}
    assert len(staying.seconds) == 120
