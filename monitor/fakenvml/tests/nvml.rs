//! The library as a program sees it: through nvml-wrapper, and by raw calls for what that hides.
//!
//! A test that needs the library runs itself again as a child with the fake's environment.
#![allow(unsafe_code, clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report")]

use std::collections::BTreeMap;
use std::process::Command;

use gpumon_core::units::{Megahertz, Milliwatts};
use gpumon_fakenvml::testing::{self, Fake};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

const CHILD: &str = "GPUMON_FAKENVML_TEST_CHILD";

/// Runs `test` of this file in a child that loads `fake`; in the child, `inside`.
#[track_caller]
fn in_child(test: &str, script: &str, inside: fn(&Nvml)) {
    if std::env::var_os(CHILD).is_some() {
        let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().unwrap();
        return inside(&nvml);
    }
    child_succeeds(test, &Fake::new(script).unwrap());
}

#[track_caller]
fn child_succeeds(test: &str, fake: &Fake) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .envs(fake.environment())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn the_exports_are_the_list_and_no_test_exports_any() {
    let exported = gpumon_fakenvml::dynamic_names(&std::fs::read(testing::library().unwrap()).unwrap());
    let exported: Vec<_> = exported.unwrap().into_iter().filter(|name| name.starts_with("nvml")).collect();
    assert_eq!(exported, gpumon_fakenvml::functions());
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let own = gpumon_fakenvml::dynamic_names(&own).unwrap();
    assert!(!own.iter().any(|name| name.starts_with("nvml")), "{own:?}");
}

#[test]
fn the_documents_list_is_the_list() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fake-nvml.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (start, end) = ("<!-- functions -->\n", "<!-- end -->");
    let from = text.find(start).unwrap() + start.len();
    let to = from + text[from..].find(end).unwrap();
    let list = format!("`{}`\n", gpumon_fakenvml::functions().join("`, `"));
    let wanted = format!("{}{list}{}", &text[..from], &text[to..]);
    if std::env::var_os("GPUMON_BLESS").is_some() {
        std::fs::write(path, &wanted).unwrap();
        return;
    }
    assert_eq!(text, wanted, "GPUMON_BLESS=1 writes it anew");
}

#[test]
fn readings_are_those_of_the_simulated_gpus() {
    in_child("readings_are_those_of_the_simulated_gpus", "gpus = \"h200\"\ncount = 3\n", |nvml| {
        assert_eq!(nvml.device_count().unwrap(), 3);
        assert_eq!(nvml.sys_driver_version().unwrap(), "580.159.04");
        let mut device = nvml.device_by_index(2).unwrap();
        let spec = gpumon_simgpu::Spec::builtin("h200").unwrap();
        let mut spec = spec;
        spec.count = 3;
        let sim = gpumon_simgpu::SimGpu::fleet(&spec).remove(2);
        assert_eq!(device.uuid().unwrap(), sim.uuid());
        assert_eq!(device.pci_info().unwrap().bus_id, sim.pci_id());
        assert_eq!(nvml.device_by_uuid(sim.uuid()).unwrap().index().unwrap(), 2);
        assert_eq!(nvml.device_by_pci_bus_id(sim.pci_id()).unwrap().index().unwrap(), 2);
        assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
        assert!(matches!(nvml.device_by_index(3), Err(NvmlError::InvalidArg)));
        assert_eq!(device.memory_info().unwrap().total, spec.mem_total_bytes);
        assert_eq!(device.supported_memory_clocks().unwrap(), [3201]);
        assert_eq!(device.supported_graphics_clocks(3201).unwrap().len(), 110);
        assert!((50_000..800_000).contains(&device.power_usage().unwrap()));
        assert!((300..2000).contains(&device.clock_info(Clock::SM).unwrap()));
        assert!((20..90).contains(&device.temperature(TemperatureSensor::Gpu).unwrap()));
        assert!(matches!(device.fan_speed(0), Err(NvmlError::NotSupported)));
        let before = device.total_energy_consumption().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let joules = (device.total_energy_consumption().unwrap() - before) as f64 / 1e3;
        assert!((10.0..400.0).contains(&joules), "{joules} J in 0.3 s");
        assert!(matches!(device.set_power_management_limit(300_000), Err(NvmlError::NoPermission)));
        assert!(device.running_compute_processes().unwrap().is_empty());
    });
}

#[test]
fn changes_are_seen_by_the_next_process_and_by_the_truth() {
    const TEST: &str = "changes_are_seen_by_the_next_process_and_by_the_truth";
    if std::env::var_os(CHILD).is_some() {
        let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().unwrap();
        let mut device = nvml.device_by_index(0).unwrap();
        if device.enforced_power_limit().unwrap() == 700_000 {
            device.set_power_management_limit(400_000).unwrap();
            let locked = nvml_wrapper::enums::device::GpuLockedClocksSetting::Numeric {
                min_clock_mhz: 345,
                max_clock_mhz: 600,
            };
            device.set_gpu_locked_clocks(locked).unwrap();
            assert!(matches!(device.set_power_management_limit(9_000_000), Err(NvmlError::InvalidArg)));
        } else {
            assert_eq!(device.power_management_limit().unwrap(), 400_000);
            std::thread::sleep(std::time::Duration::from_millis(150));
            assert!(device.clock_info(Clock::Graphics).unwrap() <= 600);
            device.reset_gpu_locked_clocks().unwrap();
        }
        return;
    }
    let fake = Fake::new("privileged = true\n").unwrap();
    child_succeeds(TEST, &fake);
    let settings = |fake: &Fake| *fake.truth().unwrap().gpus[0].settings();
    assert_eq!(settings(&fake).limit, Milliwatts(400_000));
    assert_eq!(settings(&fake).locked, Some((Megahertz(345), Megahertz(600))));
    child_succeeds(TEST, &fake);
    assert_eq!(settings(&fake).locked, None);
    assert_eq!(fake.calls("nvmlDeviceSetPowerManagementLimit", Some(0)).unwrap(), 2);
    assert_eq!(fake.calls("nvmlInit_v2", None).unwrap(), 2);
}

#[test]
fn processes_that_die_while_they_change_things_leave_a_state_that_works() {
    const TEST: &str = "processes_that_die_while_they_change_things_leave_a_state_that_works";
    if std::env::var_os(CHILD).is_some() {
        let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().unwrap();
        let mut device = nvml.device_by_index(0).unwrap();
        for step in 0.. {
            device.set_power_management_limit(300_000 + step % 1_000).unwrap();
        }
    }
    let fake = Fake::new("privileged = true\n").unwrap();
    for _ in 0..3 {
        let start = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", TEST]).env(CHILD, "1").envs(fake.environment());
            command.stdout(std::process::Stdio::null()).spawn().unwrap()
        };
        let children = [start(), start(), start()];
        std::thread::sleep(std::time::Duration::from_millis(400));
        for mut child in children {
            child.kill().unwrap();
            assert_eq!(child.wait().unwrap().code(), None, "killed, not failed");
        }
    }
    let limit = fake.truth().unwrap().gpus[0].settings().limit;
    assert!((Milliwatts(300_000)..Milliwatts(301_000)).contains(&limit), "{limit}");
    let calls = fake.calls("nvmlDeviceSetPowerManagementLimit", Some(0)).unwrap();
    let log = std::fs::read_to_string(fake.folder().join("state")).unwrap();
    let lines = log.lines().filter(|line| line.contains("power_limit")).count() as u64;
    // Each of the nine may have been killed between counting its last call and writing it.
    assert!((calls - 9..=calls).contains(&lines) && calls > 100, "{calls} calls, {lines} lines");
}

#[test]
fn wrong_arguments_are_refused_as_the_library_does() {
    in_child("wrong_arguments_are_refused_as_the_library_does", "", |nvml| {
        // SAFETY: the library is loaded for as long as the process lives; wrong pointers are null.
        unsafe {
            let lib = sys::NvmlLib::new("libnvidia-ml.so.1").unwrap();
            let handle = nvml.device_by_index(0).unwrap().handle();
            let power = lib.nvmlDeviceGetPowerUsage.as_ref().unwrap();
            assert_eq!(power(handle, std::ptr::null_mut()), 2);
            assert_eq!(power(std::ptr::null_mut(), &mut 0), 2);
            assert_eq!(power(std::ptr::without_provenance_mut(0x1234), &mut 0), 2);
            let memory = lib.nvmlDeviceGetMemoryInfo_v2.as_ref().unwrap();
            let mut info: sys::nvmlMemory_v2_t = std::mem::zeroed();
            assert_eq!(memory(handle, &mut info), 25, "version 0");
            info.version = size_of::<sys::nvmlMemory_v2_t>() as u32 | 3 << 24;
            assert_eq!(memory(handle, &mut info), 25, "version 3");
            let name = lib.nvmlDeviceGetName.as_ref().unwrap();
            assert_eq!(name(handle, [0; 4].as_mut_ptr(), 4), 7);
            assert!(lib.nvmlDeviceGetNvLinkState.is_err(), "not there, so not exported");
            let shutdown = lib.nvmlShutdown.as_ref().unwrap();
            assert_eq!(shutdown(), 0);
            assert_eq!((power(handle, &mut 0), shutdown()), (1, 1), "uninitialised");
            assert_eq!(lib.nvmlInit_v2.as_ref().unwrap()(), 0);
            assert_eq!(power(handle, &mut 0), 0, "the same handle");
        }
    });
}

#[test]
fn instances_are_made_where_they_fit_and_are_devices() {
    in_child("instances_are_made_where_they_fit_and_are_devices", "privileged = true", |nvml| {
        let device = nvml.device_by_index(0).unwrap();
        // SAFETY: valid handles and places; the library stays loaded.
        unsafe {
            let lib = sys::NvmlLib::new("libnvidia-ml.so.1").unwrap();
            let create = lib.nvmlDeviceCreateGpuInstance.as_ref().unwrap();
            let mut made = std::ptr::null_mut();
            assert_eq!(create(device.handle(), 9, &mut made), 3, "MIG is off");
            device.set_mig_mode(true).unwrap();
            assert_eq!(create(device.handle(), 9, &mut made), 0);
            let first = made;
            assert_eq!(create(device.handle(), 9, &mut made), 0);
            assert_eq!(create(device.handle(), 19, &mut made), 23, "3 + 3 fills the memory");
            let mut compute = std::ptr::null_mut();
            let create_compute = lib.nvmlGpuInstanceCreateComputeInstance.as_ref().unwrap();
            assert_eq!(create_compute(first, 2, &mut compute), 0);
            assert_eq!(create_compute(first, 0, &mut compute), 23);
            assert!(matches!(device.set_mig_mode(false), Err(NvmlError::InUse)));
            assert_eq!(lib.nvmlGpuInstanceDestroy.as_ref().unwrap()(first), 19);
            let mig = device.mig_device_by_index(0).unwrap();
            assert!(mig.name().unwrap().contains("MIG 3g.71gb"), "{}", mig.name().unwrap());
            assert!(mig.uuid().unwrap().starts_with("MIG-"));
            assert!(mig.mig_is_mig_device_handle().unwrap());
            assert!(matches!(mig.power_usage(), Err(NvmlError::NotSupported)));
            assert!(matches!(device.utilization_rates(), Err(NvmlError::NotSupported)));
            assert_eq!(
                nvml.device_by_uuid(mig.uuid().unwrap()).unwrap().uuid().unwrap(),
                mig.uuid().unwrap()
            );
            assert_eq!(lib.nvmlComputeInstanceDestroy.as_ref().unwrap()(compute), 0);
            assert!(matches!(mig.uuid(), Err(NvmlError::InvalidArg)), "it is gone");
            assert_eq!(lib.nvmlGpuInstanceDestroy.as_ref().unwrap()(first), 0);
        }
    });
}

#[test]
fn instances_tell_their_sizes_and_places() {
    in_child("instances_tell_their_sizes_and_places", "privileged = true", |nvml| {
        let device = nvml.device_by_index(0).unwrap();
        device.set_mig_mode(true).unwrap();
        // SAFETY: valid handles and places with room for what is asked; the library stays loaded.
        unsafe {
            let handle = device.handle();
            let lib = sys::NvmlLib::new("libnvidia-ml.so.1").unwrap();
            let mut info: sys::nvmlGpuInstanceProfileInfo_v2_t = std::mem::zeroed();
            let profile = lib.nvmlDeviceGetGpuInstanceProfileInfoV.as_ref().unwrap();
            assert_eq!(profile(handle, 3, &mut info), 25);
            info.version = size_of_val(&info) as u32 | 2 << 24;
            assert_eq!(profile(handle, 3, &mut info), 0);
            assert_eq!((info.id, info.sliceCount, info.instanceCount), (5, 4, 1));
            assert_eq!(profile(handle, 5, &mut info), 3, "no eighth slice");
            let (mut count, mut places) = (0, [std::mem::zeroed::<sys::nvmlGpuInstancePlacement_t>(); 8]);
            let possible = lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref().unwrap();
            assert_eq!(possible(handle, 9, std::ptr::null_mut(), &mut count), 0);
            assert_eq!(possible(handle, 9, places.as_mut_ptr(), &mut count), 0);
            assert_eq!((count, places[1].start, places[1].size), (2, 4, 4));
            let mut gi = std::ptr::null_mut();
            let create = lib.nvmlDeviceCreateGpuInstanceWithPlacement.as_ref().unwrap();
            let wrong = sys::nvmlGpuInstancePlacement_t { start: 3, size: 4 };
            assert_eq!(create(handle, 9, &wrong, &mut gi), 2);
            assert_eq!(create(handle, 9, &places[1], &mut gi), 0);
            assert_eq!(create(handle, 9, &places[1], &mut gi), 23, "taken");
            let capacity = lib.nvmlDeviceGetGpuInstanceRemainingCapacity.as_ref().unwrap();
            assert_eq!((capacity(handle, 19, &mut count), count), (0, 4));
            let mut all = [std::ptr::null_mut(); 8];
            assert_eq!(
                lib.nvmlDeviceGetGpuInstances.as_ref().unwrap()(handle, 9, all.as_mut_ptr(), &mut count),
                0
            );
            let mut found: sys::nvmlGpuInstanceInfo_t = std::mem::zeroed();
            assert_eq!(lib.nvmlGpuInstanceGetInfo.as_ref().unwrap()(all[0], &mut found), 0);
            assert_eq!((count, found.profileId, found.placement.start, found.device), (1, 9, 4, handle));
            assert_eq!(lib.nvmlDeviceGetGpuInstanceById.as_ref().unwrap()(handle, found.id, &mut gi), 0);
            assert_eq!(gi, all[0]);

            let mut info: sys::nvmlComputeInstanceProfileInfo_t = std::mem::zeroed();
            let profile = lib.nvmlGpuInstanceGetComputeInstanceProfileInfo.as_ref().unwrap();
            assert_eq!(profile(gi, 0, 0, &mut info), 0);
            assert_eq!((info.id, info.sliceCount, info.instanceCount), (0, 1, 3));
            assert_eq!(profile(gi, 3, 0, &mut info), 3, "four slices in three");
            let mut ci = std::ptr::null_mut();
            let create = lib.nvmlGpuInstanceCreateComputeInstanceWithPlacement.as_ref().unwrap();
            let place = sys::nvmlComputeInstancePlacement_t { start: 1, size: 1 };
            assert_eq!(create(gi, 0, &place, &mut ci), 0);
            let mut found: sys::nvmlComputeInstanceInfo_t = std::mem::zeroed();
            assert_eq!(lib.nvmlComputeInstanceGetInfo_v2.as_ref().unwrap()(ci, &mut found), 0);
            assert_eq!((found.placement.start, found.profileId, found.gpuInstance), (1, 0, gi));
            let capacity = lib.nvmlGpuInstanceGetComputeInstanceRemainingCapacity.as_ref().unwrap();
            assert_eq!((capacity(gi, 0, &mut count), count), (0, 2));
            let mut all = [std::ptr::null_mut(); 8];
            let list = lib.nvmlGpuInstanceGetComputeInstances.as_ref().unwrap();
            assert_eq!((list(gi, 0, all.as_mut_ptr(), &mut count), count, all[0]), (0, 1, ci));
            let mut attributes: sys::nvmlDeviceAttributes_t = std::mem::zeroed();
            let mig = device.mig_device_by_index(0).unwrap().handle();
            assert_eq!(lib.nvmlDeviceGetAttributes_v2.as_ref().unwrap()(mig, &mut attributes), 0);
            assert_eq!((attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount), (3, 1));
        }
    });
}

#[test]
fn faults_strike_by_call_and_by_time() {
    const SCRIPT: &str = r#"
        count = 2
        [[fault]]
        kind = "error"
        call = "nvmlDeviceGetPowerUsage"
        gpu = 0
        from_call = 2
        for_calls = 2
        error = "TIMEOUT"
        [[fault]]
        kind = "garbage"
        call = "nvmlDeviceGetTotalEnergyConsumption"
        gpu = 1
        for_calls = 1
        value = 1_000_000_000_000_000_000
        [[fault]]
        kind = "counter-reset"
        gpu = 1
        from_call = 3
        [[fault]]
        kind = "lost"
        gpu = 1
        call = "nvmlDeviceGetName"
        from_call = 2
    "#;
    in_child("faults_strike_by_call_and_by_time", SCRIPT, |nvml| {
        let (zero, one) = (nvml.device_by_index(0).unwrap(), nvml.device_by_index(1).unwrap());
        let failed: Vec<bool> = (0..5).map(|_| zero.power_usage().is_err()).collect();
        assert_eq!(failed, [false, true, true, false, false]);
        assert!(one.power_usage().is_ok());
        assert_eq!(one.total_energy_consumption().unwrap(), 1_000_000_000_000_000_000);
        assert!(one.total_energy_consumption().unwrap() > 1_000_000_000);
        assert!(one.total_energy_consumption().unwrap() < 1_000_000, "from zero again");
        assert!(one.name().is_ok());
        assert!(matches!(one.name(), Err(NvmlError::GpuLost)));
        assert!(matches!(one.power_usage(), Err(NvmlError::GpuLost)), "for good, whatever is called");
        assert!(matches!(nvml.device_by_index(1), Err(NvmlError::GpuLost)));
        assert!(zero.name().is_ok());
    });
}

#[test]
fn a_patched_copy_lacks_a_symbol_and_works_otherwise() {
    let script = "[[fault]]\nkind = \"missing-symbol\"\ncall = \"nvmlDeviceGetPowerUsage\"\n";
    in_child("a_patched_copy_lacks_a_symbol_and_works_otherwise", script, |nvml| {
        let device = nvml.device_by_index(0).unwrap();
        assert!(matches!(device.power_usage(), Err(NvmlError::FailedToLoadSymbol(_))));
        assert!(device.name().is_ok());
    });
}

#[test]
fn a_script_with_a_mistake_fails_initialisation_and_says_why() {
    let fake = Fake::new("").unwrap();
    std::fs::write(fake.folder().join("script.toml"), "counts = 3\n").unwrap();
    let environment: BTreeMap<_, _> = fake.environment().into_iter().collect();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "readings_are_those_of_the_simulated_gpus", "--nocapture"])
        .env(CHILD, "1")
        .envs(environment)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success() && text.contains("unknown field `counts`"), "{text}");
}
