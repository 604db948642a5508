//! Finding GPUs: which ones are meant, which sleep, what is wrong with the driver, and one process's hold on it.
#![allow(unsafe_code, reason = "a test forks")]

use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use gpumon_core::clock::RealClock;
use gpumon_fakenvml::testing::Fake;
use gpumon_monitor::device;
use serde_json::Value;

use super::helpers::*;
use super::{is_played, play};

#[test]
fn row_07_cuda_visible_devices_in_every_form() {
    let fake = fake(TWO);
    fake.partition(1, &[3, 2]).unwrap();
    let listed = json(&devices(&fake));
    let uuid = |gpu: usize| listed["gpus"][gpu]["uuid"].as_str().unwrap().to_owned();
    let mig = listed["gpus"][1]["mig_uuids"][1].as_str().unwrap().to_owned();
    let path = recording(&fake);
    let run = |visible: &str| -> Output {
        let args = ["run", "-o", path.to_str().unwrap(), "--force", "--tail", "0", "--", "true"];
        command(&fake, &args).env("CUDA_VISIBLE_DEVICES", visible).output().unwrap()
    };
    let common = uuid(0).bytes().zip(uuid(1).bytes()).take_while(|(a, b)| a == b).count();
    for (visible, expected) in [
        ("1".to_owned(), vec![1]),
        ("1,0".to_owned(), vec![1, 0]),
        (uuid(0), vec![0]),
        (uuid(1)[..common + 1].to_owned(), vec![1]),
        (mig, vec![1]),
        (format!("MIG-{}/1/0", uuid(1)), vec![1]),
        ("0,7,1".to_owned(), vec![0]),
    ] {
        let output = run(&visible);
        assert!(output.status.success(), "{visible}: {}", text(&output.stderr));
        let header: Value =
            serde_json::from_slice(&std::fs::read(path.join("recording.json")).unwrap()).unwrap();
        let found: Vec<_> =
            header["gpus"].as_array().unwrap().iter().map(|gpu| gpu["uuid"].clone()).collect();
        assert_eq!(found, expected.into_iter().map(uuid).collect::<Vec<_>>(), "{visible}");
    }
    let output = run(&uuid(0)[..common]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains(&uuid(0)) && said.contains(&uuid(1)), "names both: {said}");
}

/// A folder of PCI devices as sysfs has it, with the GPUs of a fake.
fn pci_devices(folder: &Path, gpus: &[(&str, &str)]) {
    let device = |address: &str, vendor: &str, class: &str, status: &str| {
        let place = folder.join(address);
        std::fs::create_dir_all(place.join("power")).unwrap();
        std::fs::write(place.join("vendor"), vendor).unwrap();
        std::fs::write(place.join("class"), class).unwrap();
        std::fs::write(place.join("power/runtime_status"), status).unwrap();
    };
    for (address, status) in gpus {
        device(address, "0x10de\n", "0x030200\n", &format!("{status}\n"));
    }
    // Neither another vendor's display nor the GPU's own audio matters.
    device("0000:00:02.0", "0x8086\n", "0x030000\n", "suspended\n");
    device("0000:00:03.1", "0x10de\n", "0x040300\n", "suspended\n");
}

#[test]
fn row_08_a_sleeping_gpu_is_not_woken() {
    let addresses: Vec<String> = {
        let listed = json(&devices(&fake(TWO)));
        let pci = |gpu: usize| listed["gpus"][gpu]["pci_id"].as_str().unwrap().to_lowercase();
        // NVML writes eight digits of the domain, sysfs four.
        (0..2).map(|gpu| pci(gpu)[4..].to_owned()).collect()
    };
    let list = |states: [&str; 2], more: &[&str]| -> (Fake, Output) {
        let fake = fake(TWO);
        let folder = fake.folder().join("pci");
        pci_devices(&folder, &[(&addresses[0], states[0]), (&addresses[1], states[1])]);
        let args = [&["devices", "--json"], more].concat();
        let output = command(&fake, &args).env("GPUMON_PCI_DEVICES", &folder).output().unwrap();
        (fake, output)
    };
    let touched = |fake: &Fake| {
        ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetName"]
            .map(|call| fake.calls(call, Some(0)).unwrap())
    };
    let (fake, output) = list(["suspended", "active"], &[]);
    assert_eq!(json(&output)["gpus"].as_array().unwrap().len(), 1, "the one that is awake");
    assert_eq!(json(&output)["gpus"][0]["index"], 1);
    assert_eq!(touched(&fake), [0, 0, 0]);
    let said = text(&output.stderr);
    assert!(said.contains(&addresses[0]) && said.contains("--wake"), "{said}");
    assert!(said.contains("GPUMON_PCI_DEVICES"), "another folder is never used in silence: {said}");

    let (fake, output) = list(["suspended", "suspended"], &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("asleep") && said.contains("--wake"), "{said}");
    assert_eq!(fake.calls("nvmlInit_v2", None).unwrap(), 0, "the driver was left alone");

    for (states, more) in [(["suspended", "active"], &["--wake"][..]), (["active", "active"], &[])] {
        let (_, output) = list(states, more);
        assert_eq!(json(&output)["gpus"].as_array().unwrap().len(), 2);
    }
}

#[track_caller]
fn one_sentence(output: &Output, says: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "one sentence: {said}");
    says.iter().for_each(|part| assert!(said.contains(part), "`{part}` is not in: {said}"));
}

#[test]
fn row_10_driver_and_library_are_of_different_versions() {
    let output = devices(&fake("[[fault]]\nkind = \"driver-mismatch\"\n"));
    one_sentence(&output, &["different versions", "restart the machine", "modprobe"]);
}

#[test]
fn row_11_no_driver_no_gpu_no_library() {
    one_sentence(
        &devices(&fake("[[fault]]\nkind = \"no-driver\"\n")),
        &["no NVIDIA driver", "not loaded", "sim:h200"],
    );
    one_sentence(&devices(&fake("count = 0")), &["finds no GPU", "sim:h200"]);
    // A library that is there and broken is told with the loader's own reason.
    let broken = fake("");
    let library = broken.folder().join("libnvidia-ml.so.1");
    std::fs::remove_file(&library).unwrap();
    std::fs::write(
        &library,
        "no library at all, but long enough to look like one to whoever only counts bytes",
    )
    .unwrap();
    one_sentence(&devices(&broken), &["cannot be loaded", "invalid ELF header", "sim:h200"]);
    if !Path::new("/proc/driver/nvidia/version").exists() {
        std::fs::remove_file(&library).unwrap();
        one_sentence(&devices(&broken), &["no NVIDIA driver", "libnvidia-ml.so.1 is not found", "sim:h200"]);
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn row_16_opening_again_and_again_leaks_nothing() {
    if is_played() {
        let open = || device::open("nvml", Arc::new(RealClock)).unwrap();
        assert_eq!(open().len(), 2);
        let after_one = descriptors();
        for _ in 0..30 {
            let gpus = open();
            assert!(gpus.iter().all(|gpu| gpu.power().is_ok()));
            gpus.iter().for_each(|gpu| gpu.attach_again().unwrap());
        }
        assert_eq!(descriptors(), after_one);
        return;
    }
    let fake = fake(TWO);
    play(&fake, "start::row_16_opening_again_and_again_leaks_nothing");
    assert_eq!(fake.calls("nvmlInit_v2", None).unwrap(), 1);
    assert_eq!(fake.calls("nvmlShutdown", None).unwrap(), 0);
}

#[test]
fn row_17_a_fork_does_not_use_its_parents_nvml() {
    if is_played() {
        let gpus = device::open("nvml", Arc::new(RealClock)).unwrap();
        // SAFETY: the child reads, which locks nothing that another thread of this process holds, and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refuses = |e: &dyn std::fmt::Display| e.to_string().contains("forked");
            let reads = gpus[0].power().err().is_some_and(|e| refuses(&e));
            let opens = device::open("nvml", Arc::new(RealClock)).err().is_some_and(|e| refuses(&e));
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(if reads && opens { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made; `status` is a place for one integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child was refused");
        assert!(gpus[0].power().is_ok(), "the parent reads on");
        return;
    }
    let fake = fake(TWO);
    play(&fake, "start::row_17_a_fork_does_not_use_its_parents_nvml");
    // A command that is recorded is a program of its own, and may open the GPUs itself.
    let path = recording(&fake);
    let own = env!("CARGO_BIN_EXE_gpumon");
    let args = ["run", "-o", path.to_str().unwrap(), "--tail", "0", "--", own, "devices", "--json"];
    let output = command(&fake, &args).output().unwrap();
    assert_eq!(json(&output)["gpus"].as_array().unwrap().len(), 2);
}
