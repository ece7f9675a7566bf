"""`kinetoscope view` of a job with the flight recorder on."""

import json
import os
import subprocess
import sys
import urllib.request

from tests.support.controlled_job import controlled_job


def test_the_ring_of_a_job_is_followed(tmp_path):
    with controlled_job(tmp_path) as job:
        job.do("steps", 3)
        viewer = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kinetoscope",
                "view",
                "--no-browser",
                "--port",
                "0",
                str(job.process.pid),
            ],
            env={**os.environ, "KINETOSCOPE_DIR": str(job.folder)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            address = viewer.stdout.readline().strip()

            def shown():
                with urllib.request.urlopen(address + "api/traces") as answer:
                    return json.load(answer)

            before = shown()
            job.do("steps", 200)
            after = before
            while after == before:
                after = shown()
        finally:
            viewer.terminate()
            viewer.communicate()
    assert "rank0.recording" in json.dumps(before)
    assert '"live": true' in json.dumps(after)
