use gpumon_core::units::Milliwatts;

use super::*;
use crate::gpu::SimGpu;
use crate::spec::Spec;

const SLICES: [u8; 5] = [1, 2, 3, 4, 7];
const BATCHES: [u32; 6] = [1, 2, 4, 8, 16, 32];

fn clocks() -> Vec<Megahertz> {
    (210..=1410).step_by(15).map(Megahertz).collect()
}

fn a100() -> SimGpu {
    SimGpu::fleet(&Spec::builtin("a100").unwrap()).remove(0)
}

#[test]
fn the_built_in_models_read_and_have_plausible_figures() {
    let models = SimModel::builtins();
    assert_eq!(models.len(), 6);
    for model in models {
        let fast = model.truth(1, Share::Mig(7), Megahertz(1410));
        let slow = model.truth(32, Share::Mig(1), Megahertz(210));
        assert!((0.3..400.0).contains(&fast.time_ms), "{} {fast:?}", model.name());
        assert!(slow.time_ms > 4.0 * fast.time_ms, "{} {fast:?} {slow:?}", model.name());
        let most = model.truth(32, Share::Mig(7), Megahertz(1410)).dynamic_w;
        assert!((60.0..290.0).contains(&most), "{} {most}", model.name());
        assert!(model.memory_bytes(32) < model.capacity_bytes(Share::Mig(1)));
    }
}

#[test]
fn more_of_the_gpu_is_never_slower() {
    for model in SimModel::builtins() {
        let time = |batch, slices, mhz| model.truth(batch, Share::Mig(slices), Megahertz(mhz)).time_ms;
        for batch in BATCHES {
            for mhz in (210..1410).step_by(30) {
                assert!(time(batch, 7, mhz + 30) <= time(batch, 7, mhz), "a higher clock");
            }
            // Few blocks ask for weights slowly, so a batch of two may be a little faster than one of one.
            assert!(
                time(2 * batch, 2, 900) >= 0.95 * time(batch, 2, 900),
                "a larger batch of {}",
                model.name()
            );
            assert!(time(batch, 7, 900) <= time(batch, 3, 900) && time(batch, 3, 900) <= time(batch, 1, 900));
        }
    }
}

#[test]
fn surfaces_have_steps() {
    let model = SimModel::builtin("bert-like").unwrap();
    let time = |batch| model.truth(batch, Share::Mig(2), Megahertz(1200)).time_ms;
    let steps: Vec<f64> = (1..32).map(|b| time(b + 1) - time(b)).collect();
    let (least, most) =
        (steps.iter().copied().fold(f64::MAX, f64::min), steps.iter().copied().fold(0.0, f64::max));
    assert!(most > 3.0 * least.max(1e-9), "waves are quantised: {steps:?}");
}

#[test]
fn every_point_can_be_drawn_by_the_simulated_a100() {
    let gpu = a100();
    let law = crate::law::PowerLaw::new(gpu.spec());
    for model in SimModel::builtins() {
        for slices in SLICES {
            for batch in [1, 8, 32] {
                for clock in clocks() {
                    let level = law.level_of(model.dynamic_w(batch, Share::Mig(slices), clock), clock);
                    assert!(
                        (0.0..=1.0).contains(&level),
                        "{} {slices} {batch} {clock}: {level}",
                        model.name()
                    );
                }
            }
        }
    }
}

#[test]
fn the_power_limit_lowers_the_clock_and_lengthens_the_batch() {
    let mut gpu = a100();
    let model = SimModel::builtin("vgg19-like").unwrap();
    let (share, top) = (Share::Mig(7), Megahertz(1410));
    gpu.apply(gpumon_core::units::MonoUs(0), crate::Change::PowerLimit(Milliwatts(150_000))).unwrap();
    let held = model.settle(&gpu, 32, share, top);
    assert!(held.clock < top && held.dynamic_w < 110.0, "{held:?}");
    assert!(held.time_ms > 1.05 * model.time_ms(32, share, top));
    let at_300_w = model.settle(&a100(), 32, share, top);
    assert!((Megahertz(1200)..top).contains(&at_300_w.clock), "the cap of an A100 shows: {at_300_w:?}");
    let free = model.settle(&a100(), 1, Share::Mig(1), Megahertz(750));
    assert_eq!(free.clock, Megahertz(750));
    let asked_w = model.dynamic_w(1, Share::Mig(1), Megahertz(750));
    assert!((free.dynamic_w - asked_w).abs() < 0.01);
}

#[test]
fn noise_is_a_function_of_the_point_and_small() {
    let model = SimModel::builtin("densenet-like").unwrap();
    let point = (8, Share::Mig(3), Megahertz(900));
    let time = |m: &SimModel| m.time_ms(point.0, point.1, point.2);
    assert_eq!(time(&model), time(&SimModel::builtin("densenet-like").unwrap()));
    assert_ne!(time(&model), time(&model.clone().with_seed(9)));
    for clock in clocks() {
        let truth = model.truth(8, Share::Mig(3), clock);
        assert!((model.time_ms(8, Share::Mig(3), clock) / truth.time_ms - 1.0).abs() < 0.025);
        assert!((model.dynamic_w(8, Share::Mig(3), clock) / truth.dynamic_w - 1.0).abs() < 0.04);
    }
    let mean = (0..20_000).map(|i| model.jitter(i)).sum::<f64>() / 20_000.0;
    assert!((mean - 1.0).abs() < 0.001, "{mean}");
}

#[test]
fn wrong_descriptions_are_explained() {
    for (from, to, says) in [
        ("sm_count = 108", "sm_count = 0", "`gpu.sm_count` is 0"),
        ("efficiency = 0.52", "efficiency = -1", "efficiency of `wide convolution` in `resnet50-like`"),
        ("l2_best_hit = 0.85", "l2_best_hit = 1.5", "from 0 to 1"),
        ("host_ms = 0.12", "host = 1", "unknown field `host`"),
        ("[[210, 0.72]", "[[2100, 0.72]", "ascending"),
    ] {
        let error = SimModel::parse(&BUILTIN.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(says), "{to}: {error}");
    }
}
