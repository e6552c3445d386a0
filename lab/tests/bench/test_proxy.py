"""A moment of `lab.bench.proxy`: every server answers every request rightly, and its time is counted."""

from pathlib import Path

from lab.bench.proxy import backend, load, passthrough, patina, started


def test_all_three_serve_the_load_without_an_error(tmp_path: Path) -> None:
    with started("direct", backend, tmp_path) as direct:
        url = f"http://127.0.0.1:{direct.port}"
        with (
            started("bare", passthrough(url), tmp_path) as bare,
            started("patina", patina(tmp_path / "home", url), tmp_path, "/healthz") as ours,
        ):
            for server in (direct, bare, ours):
                for mode in ("plain", "stream", "paced"):
                    found = load(server, mode, 3, 0.2)
                    assert found["errors"] == 0
                    assert found["requests"] >= 3
                    assert found["ttft_ms"] <= found["p50_ms"]
                assert server.cpu_s() > 0
