"""Every scenario of the benchmarks, at its smallest size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not os.environ.get("JOBQ_PROVE"), reason="a minute: make prove"),
]


def test_all_scenarios_run(tmp_path: Path) -> None:
    run = Path(__file__).parent / "bench" / "run.py"
    command = [sys.executable, str(run), "--smoke", "--out", str(tmp_path)]
    subprocess.run(command, check=True)
    scenarios = json.loads((tmp_path / "bench.json").read_text())["scenarios"]
    assert {"drain", "enqueue", "pickup", "pinned", "crowds", "claimers"} <= scenarios.keys()
    for name, scenario in scenarios.items():
        assert scenario["rows"], name
