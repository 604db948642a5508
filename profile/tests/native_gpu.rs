//! The kernels of native nets against the processor, on a machine with an NVIDIA GPU; elsewhere it says that it is skipped.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is a test's report, in its helpers too")]

use gpumon_profile::native::gpu::{Buffer, CudaError, Gpu};
use gpumon_profile::native::model::Model;
use gpumon_profile::native::net::{Im2col, Multiplier};
use gpumon_profile::native::{NETS, green_levels, net_of};
use half::f16;

/// A GPU, or `None` where there is no driver.
fn gpu(green: Option<u16>, multiplier: Multiplier) -> Option<Gpu> {
    match Gpu::open(green, multiplier) {
        Ok(gpu) => Some(gpu),
        Err(CudaError::Cannot(why)) if why.contains("is not there") => {
            eprintln!("skipped: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Random values on the GPU, and what they are.
fn random(gpu: &Gpu, values: usize, seed: u64) -> (Buffer, Vec<f32>) {
    let buffer = gpu.memory(2 * values as u64).unwrap();
    gpu.fill(&buffer, 1.0, seed).unwrap();
    let read = read(gpu, &buffer, values);
    (buffer, read)
}

fn read(gpu: &Gpu, buffer: &Buffer, values: usize) -> Vec<f32> {
    gpu.wait().unwrap();
    gpu.read(buffer, values).unwrap().into_iter().map(|bits| f16::from_bits(bits).to_f32()).collect()
}

fn assert_close(what: &str, got: &[f32], wanted: impl Iterator<Item = f32>, within: f32) {
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!((got - wanted).abs() <= within, "{what}, value {at}: {got}, expected {wanted}");
    }
}

#[test]
fn random_values_are_even() {
    let Some(gpu) = gpu(None, Multiplier::Own) else { return };
    let (_, values) = random(&gpu, 1 << 20, 7);
    let n = values.len() as f32;
    let (mean, square) = (values.iter().sum::<f32>() / n, values.iter().map(|v| v * v).sum::<f32>() / n);
    assert!(mean.abs() < 0.005 && (square - 1.0 / 3.0).abs() < 0.005, "{mean} {square}");
    assert!(values.iter().all(|v| v.abs() <= 1.0));
}

#[test]
fn matrix_products_are_right_by_both_and_in_a_green_context() {
    let sms = green_levels(&[14], 132, 9)[0];
    for (green, multiplier) in [
        (None, Multiplier::Own),
        (None, Multiplier::Any),
        (Some(sms), Multiplier::Own),
        (Some(sms), Multiplier::Any),
    ] {
        let Some(gpu) = gpu(green, multiplier) else { return };
        eprintln!("{green:?} {}", gpu.multiplier());
        // Within a tile, at its edges, and beyond.
        for (m, n, k) in [(1, 8, 8), (128, 128, 32), (129, 136, 40), (300, 64, 152), (77, 1000, 520)] {
            let (a, a_values) = random(&gpu, m * k, 1);
            let (w, w_values) = random(&gpu, n * k, 2);
            let c = gpu.memory(2 * (m * n) as u64).unwrap();
            gpu.gemm((&a, &w, &c), (m as u64, n as u32, k as u32)).unwrap();
            let wanted = (0..m * n).map(|at| {
                let (row, column) = (&a_values[at / n * k..][..k], &w_values[at % n * k..][..k]);
                row.iter().zip(column).map(|(x, y)| x * y).sum::<f32>()
            });
            let what = format!("{m} × {n} × {k} by {}", gpu.multiplier());
            assert_close(&what, &read(&gpu, &c, m * n), wanted, 0.02);
        }
    }
}

#[test]
fn patches_and_passes_are_right() {
    let Some(gpu) = gpu(None, Multiplier::Own) else { return };
    for (channels, stride) in [(3, 2), (16, 1)] {
        let (height, width, kernel, images) = (9_usize, 7_usize, 3_usize, 2_usize);
        let (out_height, out_width) = (height.div_ceil(stride), width.div_ceil(stride));
        let row_length = (kernel * kernel * channels).next_multiple_of(8);
        let (input, values) = random(&gpu, images * height * width * channels, 3);
        let rows = images * out_height * out_width;
        let out = gpu.memory(2 * (rows * row_length) as u64).unwrap();
        let op = Im2col {
            rows: rows as u64,
            height: height as u32,
            width: width as u32,
            channels: channels as u32,
            kernel: kernel as u32,
            stride: stride as u32,
            out_height: out_height as u32,
            out_width: out_width as u32,
            row_length: row_length as u32,
        };
        gpu.im2col(&input, &out, &op).unwrap();
        let wanted = (0..rows * row_length).map(|at| {
            let (row, tap) = (at / row_length, at % row_length);
            let (x, y, image) = (row % out_width, row / out_width % out_height, row / out_width / out_height);
            let y = (y * stride + tap / channels / kernel).checked_sub(kernel / 2).filter(|y| *y < height);
            let x = (x * stride + tap / channels % kernel).checked_sub(kernel / 2).filter(|x| *x < width);
            match (y, x) {
                (Some(y), Some(x)) if tap < kernel * kernel * channels => {
                    values[((image * height + y) * width + x) * channels + tap % channels]
                }
                _ => 0.0,
            }
        });
        assert_close(&format!("{channels} channels"), &read(&gpu, &out, rows * row_length), wanted, 0.0);
    }
    let (x, x_values) = random(&gpu, 1_000, 4);
    let (y, y_values) = random(&gpu, 1_000, 5);
    let out = gpu.memory(2_000).unwrap();
    let leaky = |x: f32| (2.0_f32 / 1.01).sqrt() * x.max(0.1 * x);
    gpu.elementwise((&x, None), &out, (1_000, 0)).unwrap();
    assert_close("one input", &read(&gpu, &out, 1_000), x_values.iter().map(|x| leaky(*x)), 0.002);
    gpu.elementwise((&x, Some(&y)), &out, (1_000, 3)).unwrap();
    let shifted = y_values.iter().cycle().skip(24);
    let sums = x_values.iter().zip(shifted).map(|(x, y)| leaky((y - x) / 2.0_f32.sqrt()));
    assert_close("two inputs", &read(&gpu, &out, 1_000), sums, 0.002);
    assert!(gpu.elementwise((&x, None), &out, (1_001 * 8, 0)).is_err(), "more than it holds");
}

#[test]
fn nets_run_as_one_graph_and_numbers_stay_lively() {
    for (green, multiplier) in [
        (None, Multiplier::Own),
        (None, Multiplier::Any),
        (Some(40), Multiplier::Own),
        (Some(40), Multiplier::Any),
    ] {
        let Some(gpu) = gpu(green, multiplier) else { return };
        for (name, _) in NETS {
            let net = net_of(name).unwrap();
            for items in [1, 16] {
                let model = Model::load(&gpu, &net, items).unwrap();
                assert!(model.captured(), "{name}");
                let times: Vec<f64> = (0..20).map(|_| model.run(&gpu).unwrap()).collect();
                let flops = net.batch(items).unwrap().flops();
                let best = times.iter().copied().fold(f64::INFINITY, f64::min);
                eprintln!(
                    "{name}, {items} items, {green:?} SMs, {}: {best:.0} µs, {:.1} Tflop/s, {} MB",
                    gpu.multiplier(),
                    flops / best / 1e6,
                    model.bytes() / 1_000_000
                );
                let square = model.second_moment(&gpu).unwrap();
                assert!((0.2..5.0).contains(&square), "{name}: {square}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_said_and_the_gpu_goes_on() {
    let Some(gpu) = gpu(None, Multiplier::Any) else { return };
    let net = net_of("stream").unwrap();
    let error = Model::load(&gpu, &net, 10_000).err().unwrap();
    assert!(matches!(error, CudaError::Memory(_)), "{error}");
    Model::load(&gpu, &net, 1).unwrap();
}
