"""The same fit on one device and on eight."""

import os
import re
import subprocess
import sys
from pathlib import Path

import many_devices
import pytest

SCRIPT = Path(many_devices.__file__)


def said_by(script, n_devices):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={n_devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(script)]
    started = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    return started.stdout + started.stderr


@pytest.mark.slow
def test_eight_devices_give_what_one_gives():
    said = said_by(SCRIPT, 8)
    assert "n_devices 8" in said, said
    differences = dict(re.findall(r"^(.+): (\d\.\de[+-]\d+)$", said, flags=re.MULTILINE))
    assert set(differences) == set(many_devices.FITS), said
    assert all(float(value) < 1e-10 for value in differences.values()), differences


@pytest.mark.parametrize("n_devices", [0, 2])
def test_devices_that_are_not_there(n_devices):
    with pytest.raises(ValueError, match="n_devices must be"):
        many_devices.fit(n_devices)
