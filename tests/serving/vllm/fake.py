"""A stand-in for vLLM's processes, as far as their keeper goes: one that listens, one that works, and ways to go wrong.

The variable FAKE selects the behaviour: ``ok``, ``refuses`` (its settings), ``wrong`` (its flags); GET /die makes its health 503, GET
/deaf makes it listen no more and stay.
"""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

mode = os.environ.get("FAKE", "ok")
port = int(sys.argv[sys.argv.index("--port") + 1])
if mode == "wrong":
    sys.exit("api_server.py: error: unrecognized arguments: --no-such-flag")
if mode == "refuses":
    print(
        "(EngineCore pid=7) ERROR 11-21 04:00:00 [core.py:1] ValueError: No available memory for the cache blocks."
    )
    print("RuntimeError: Engine core initialization failed. See root cause above.")
    sys.exit(1)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "vllm-worker"])
pids = Path(os.environ["FAKE_PIDS"])
written = pids.with_suffix(".tmp")
written.write_text(f"{os.getpid()} {worker.pid} {os.environ.get('PYTHONPATH', 'none')}")
written.replace(pids)  # a reader never sees a part of it
health = 200


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        global health
        if self.path == "/die":
            health = 503
        if self.path == "/deaf":
            Thread(target=server.shutdown).start()
        self.send_response(health if self.path == "/health" else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        print("fake:", format % args, flush=True)


with HTTPServer(("127.0.0.1", port), Handler) as server:
    server.serve_forever()
Event().wait()
