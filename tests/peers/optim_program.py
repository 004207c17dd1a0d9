"""Asks programs/optim_trace.cpp for numbers."""

import json
import subprocess


def ask(bin_dir, **request):
    """The program's answer to a request; see the program for what it understands."""
    done = subprocess.run([bin_dir / "test" / "optim_trace"], input=json.dumps(request), text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
