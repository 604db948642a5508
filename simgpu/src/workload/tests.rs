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

fn tenant(name: &str, batch: u32, share: Share) -> Tenant {
    Tenant { model: SimModel::builtin(name).unwrap(), batch, share }
}

const TOP: Megahertz = Megahertz(1410);

#[test]
fn alone_or_in_mig_instances_models_take_what_they_take_alone() {
    let sets: [&[(&str, u32, Share)]; 4] = [
        &[("gpt-like", 8, Share::Mps(43))],
        &[("vgg19-like", 32, Share::Mps(100))],
        &[("resnet50-like", 8, Share::Mig(3)), ("gpt-like", 16, Share::Mig(4))],
        &[
            ("bert-like", 1, Share::Mig(1)),
            ("bert-like", 1, Share::Mig(1)),
            ("vgg19-like", 32, Share::Mig(2)),
        ],
    ];
    for set in sets {
        let tenants: Vec<Tenant> =
            set.iter().map(|(name, batch, share)| tenant(name, *batch, *share)).collect();
        let found = Tenant::truth(&tenants, TOP);
        let mut watts = 0.0;
        for (tenant, ms) in tenants.iter().zip(&found.times_ms) {
            let alone = tenant.model.truth(tenant.batch, tenant.share, TOP);
            assert!((ms / alone.time_ms - 1.0).abs() < 1e-9, "{set:?}: {ms} of {alone:?}");
            watts += alone.dynamic_w;
        }
        // A course does not end with whole batches of all.
        assert!((found.dynamic_w / watts - 1.0).abs() < 0.1, "{set:?}: {} of {watts}", found.dynamic_w);
    }
}

#[test]
fn models_that_share_the_memory_slow_each_other_down_by_what_they_ask_of_it() {
    let slowdowns = |set: &[Tenant], sm| {
        let found = Tenant::truth(set, sm);
        let of = |(t, ms): (&Tenant, &f64)| ms / t.model.truth(t.batch, t.share, sm).time_ms;
        let all: Vec<f64> = set.iter().zip(&found.times_ms).map(of).collect();
        (all, found.dynamic_w)
    };
    let names: Vec<_> = SimModel::builtins().iter().map(|m| m.name().to_owned()).collect();
    let (mut least, mut most) = (f64::MAX, 0.0f64);
    for a in &names {
        for b in &names {
            for batch in [1, 16] {
                let pair = [tenant(a, batch, Share::Mps(43)), tenant(b, 16, Share::Mps(57))];
                let (slower, watts) = slowdowns(&pair, TOP);
                let alone: f64 = pair.iter().map(|t| t.model.truth(t.batch, t.share, TOP).dynamic_w).sum();
                assert!(slower.iter().all(|s| (0.999..2.5).contains(s)), "{a} {b} {batch}: {slower:?}");
                assert!(watts < 1.1 * alone, "{a} {b}: {watts} W, alone {alone} W");
                least = slower.iter().copied().fold(least, f64::min);
                most = slower.iter().copied().fold(most, f64::max);
            }
        }
    }
    assert!(least < 1.01 && most > 1.07, "it depends on who meets whom: {least} to {most}");
    let (two, _) =
        slowdowns(&[tenant("vgg19-like", 8, Share::Mps(29)), tenant("gpt-like", 8, Share::Mps(29))], TOP);
    let third = tenant("densenet-like", 16, Share::Mps(29));
    let (three, _) = slowdowns(
        &[tenant("vgg19-like", 8, Share::Mps(29)), tenant("gpt-like", 8, Share::Mps(29)), third],
        TOP,
    );
    assert!(three[0] > two[0] && three[1] > two[1], "{two:?} {three:?}");
}

#[test]
fn the_power_limit_couples_models_that_share_nothing_else() {
    let mut gpu = a100();
    let set = [tenant("vgg19-like", 32, Share::Mig(3)), tenant("resnet50-like", 32, Share::Mig(4))];
    let free = Tenant::settle(&set, &gpu, Megahertz(900));
    assert_eq!(free.clock, Megahertz(900));
    gpu.apply(gpumon_core::units::MonoUs(0), crate::Change::PowerLimit(Milliwatts(150_000))).unwrap();
    let held = Tenant::settle(&set, &gpu, TOP);
    assert!(held.clock < TOP && held.dynamic_w < 110.0, "{held:?}");
    for (t, ms) in set.iter().zip(&held.times_ms) {
        let here = t.model.truth(t.batch, t.share, held.clock).time_ms;
        assert!(
            (ms / here - 1.0).abs() < 0.03 && *ms > t.model.truth(t.batch, t.share, TOP).time_ms,
            "{held:?}"
        );
    }
    assert_eq!(held, Tenant::settle(&set, &gpu, TOP), "the same again");
}
