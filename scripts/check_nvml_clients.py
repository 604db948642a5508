#!/usr/bin/env python3
"""Checks that nvidia-ml-py, nvitop and zeus read the fake NVML library and agree with gpumon.

    check_nvml_clients.py GPUMON LIBRARY

LIBRARY is libgpumon_fakenvml.so. Two simulated GPUs under a steady load, one of them with a lower limit: names, UUIDs,
PCI addresses, limits, memory and clocks have to be the same, power the same within noise, and the energy of two seconds
the same but for the steps of the energy counter, by whichever of the four it is read. Then each is shown a fault and has to name it. Needs the
packages of nvml_clients.txt; docs/fake-nvml.md says what the library is.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNT = 2
LIMIT_W = 420
# Steady, so that power at any moment and energy over time have to fit.
GPUS = """base = "h200"
[load]
kind = "constant"
level = 0.4
"""
SCRIPT = f"""gpus = "steady.toml"
count = {COUNT}
privileged = true
state = "state"
[[process]]
gpu = 1
pid = {{pid}}
used_bytes = 1_000_000_000
"""
NOISE_W = 12.0
# Share by which energies may differ, beside what the counter's steps explain.
ENERGY_SHARE = 0.02
COUNTER_STEP_S = 0.1


def start_again(library: Path) -> None:
    """Starts this script again with the fake library in its environment, where loaders look once."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "libnvidia-ml.so.1").symlink_to(library.resolve())
        (place / "steady.toml").write_text(GPUS)
        (place / "script.toml").write_text(SCRIPT.format(pid=os.getpid()))
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": folder,
            "GPUMON_FAKENVML": str(place / "script.toml"),
            "GPUMON_CLIENTS_FOLDER": folder,
        }
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)


def near(a: float, b: float, within: float, what: str) -> None:
    assert abs(a - b) <= within, f"{what}: {a} and {b} are more than {within} apart"


def pynvml_gpu(index: int) -> dict:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory_clock = pynvml.nvmlDeviceGetSupportedMemoryClocks(handle)[0]
    fields = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    assert fields[0].nvmlReturn == pynvml.NVML_SUCCESS
    _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert len(samples) > 50 and all(a.timeStamp < b.timeStamp for a, b in zip(samples, samples[1:]))
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert memory.total == memory.used + memory.free
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "pci_id": pynvml.nvmlDeviceGetPciInfo(handle).busId,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "mem_total_bytes": memory.total,
        "sm_clocks_mhz": sorted(pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_clock)),
        "mig_enabled": pynvml.nvmlDeviceGetMigMode(handle)[0] == 1,
        "powers_w": [
            pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            fields[0].value.uiVal / 1e3,
            samples[-1].sampleValue.uiVal / 1e3,
        ],
        "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "temp_c": pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),
        "pids": [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)],
    }


def gpm_pct(index: int) -> float:
    """SM utilisation by performance counters."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    assert pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = 1
    request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        pynvml.nvmlGpmSampleGet(handle, sample)
        time.sleep(0.2)
    request.sample1, request.sample2 = samples
    pynvml.nvmlGpmMetricsGet(request)
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)
    assert request.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS
    return request.metrics[0].value


def at_a_step(handle) -> tuple[float, int]:
    """When the energy counter has just moved, and where to."""
    import pynvml

    last = None
    while True:
        asked = time.monotonic()
        now = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        # Where this process was not held up, the step was within the last few calls.
        if last is not None and now != last and time.monotonic() - asked < 0.02:
            return asked, now
        last = now


def energies(gpumon: str, folder: Path) -> None:
    """Energy of about two seconds, as mean power, by all four at once."""
    import pynvml
    from zeus.device import get_gpus
    from zeus.monitor import ZeusMonitor

    zeus_gpus = get_gpus()
    monitor = ZeusMonitor(gpu_indices=list(range(COUNT)), approx_instant_energy=False)
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(COUNT)]
    recording = folder / "recording"
    command = [gpumon, "record", "-o", str(recording), "--duration", "3", "--json"]
    recorder = subprocess.Popen(command, stdout=subprocess.PIPE)
    time.sleep(0.3)
    before = [at_a_step(handle) for handle in handles]
    monitor.begin_window("two seconds", sync_execution=False)
    time.sleep(2)
    measured = monitor.end_window("two seconds", sync_execution=False)
    after = [at_a_step(handle) for handle in handles]
    powers = [zeus_gpus.get_instant_power_usage(i) / 1e3 for i in range(COUNT)]
    output, _ = recorder.communicate()
    assert recorder.returncode == 0
    summary = json.loads(output)
    for index, gpu in enumerate(summary["gpus"]):
        own_w = gpu["power_mean_w"]
        pynvml_w = (after[index][1] - before[index][1]) / 1e3 / (after[index][0] - before[index][0])
        zeus_w = measured.gpu_energy[index] / measured.time
        near(pynvml_w, own_w, own_w * ENERGY_SHARE, f"GPU {index}, energy by nvidia-ml-py and gpumon")
        # Zeus reads the counter wherever it stands, up to a step late at either end.
        steps = COUNTER_STEP_S / measured.time
        near(zeus_w, own_w, own_w * (ENERGY_SHARE + steps), f"GPU {index}, energy by zeus and gpumon")
        near(powers[index], own_w, NOISE_W, f"GPU {index}, power by zeus and gpumon")
        print(f"GPU {index}: gpumon {own_w:.1f} W, nvidia-ml-py {pynvml_w:.1f} W, zeus {zeus_w:.1f} W")


def main() -> None:
    gpumon, library = sys.argv[1], Path(sys.argv[2])
    if "GPUMON_CLIENTS_FOLDER" not in os.environ:
        start_again(library)
    folder = Path(os.environ["GPUMON_CLIENTS_FOLDER"])

    import nvitop
    import pynvml
    from zeus.device import get_gpus

    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == COUNT
    zeus_gpus = get_gpus()
    # A setter of one client is seen by all the others.
    zeus_gpus.set_power_management_limit(1, LIMIT_W * 1000)
    time.sleep(1.5)
    listed = json.loads(subprocess.run([gpumon, "devices", "--json"], check=True, capture_output=True).stdout)
    assert [gpu["power_limit_w"] for gpu in listed["gpus"]] == [700.0, float(LIMIT_W)]
    assert len(nvitop.Device.all()) == len(zeus_gpus) == len(listed["gpus"]) == COUNT
    for index, gpu in enumerate(listed["gpus"]):
        by_pynvml = pynvml_gpu(index)
        for key in ("name", "uuid", "pci_id", "driver", "power_limit_w", "mem_total_bytes", "sm_clocks_mhz", "mig_enabled"):
            assert by_pynvml[key] == gpu[key], (index, key, by_pynvml[key], gpu[key])
        by_nvitop = nvitop.Device(index)
        assert by_nvitop.name() == gpu["name"] and by_nvitop.uuid() == gpu["uuid"]
        assert by_nvitop.power_limit() == gpu["power_limit_w"] * 1000
        assert by_nvitop.memory_total() == gpu["mem_total_bytes"]
        assert by_nvitop.sm_clock() == by_pynvml["sm_mhz"] in gpu["sm_clocks_mhz"]
        assert by_nvitop.max_sm_clock() == gpu["sm_clocks_mhz"][-1]
        near(by_nvitop.temperature(), by_pynvml["temp_c"], 2, "temperature")
        assert by_nvitop.gpu_utilization() == 100 and not by_nvitop.is_mig_mode_enabled()
        assert list(by_nvitop.processes()) == by_pynvml["pids"], "processes"
        assert zeus_gpus.get_name(index) == gpu["name"]
        assert zeus_gpus.get_power_management_limit(index) == gpu["power_limit_w"] * 1000
        powers = [
            *by_pynvml["powers_w"],
            by_nvitop.power_usage() / 1e3,
            zeus_gpus.get_instant_power_usage(index) / 1e3,
            zeus_gpus.get_average_power_usage(index) / 1e3,
        ]
        near(max(powers), min(powers), NOISE_W, f"GPU {index}, power by six calls, {powers}")
        assert 0 < gpm_pct(index) < 100
    energies(gpumon, folder)

    with (folder / "script.toml").open("a") as script:
        script.write('[[fault]]\nkind = "no-driver"\n')
    said = subprocess.run([gpumon, "devices"], capture_output=True, text=True)
    assert said.returncode == 1 and "no NVIDIA driver" in said.stderr, said
    again = "import pynvml\ntry:\n pynvml.nvmlInit()\nexcept pynvml.NVMLError_DriverNotLoaded:\n print('named')"
    said = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True)
    assert said.stdout.strip() == "named", said
    print("nvidia-ml-py, nvitop and zeus agree with gpumon")


if __name__ == "__main__":
    main()
