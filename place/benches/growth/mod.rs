//! Page and picture of the growth, for docs/.

use std::fmt::Write as _;

const COLOURS: [&str; 8] =
    ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5A5A5A", "#000000"];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 50.0;
/// Powers of ten of the axes: models and seconds.
const MODELS: [i32; 2] = [1, 4];
const SECONDS: [i32; 2] = [-5, 2];

const HEAD: &str = "# How placing grows

Written by `cargo bench -p gpumon-place --bench scale -- --write`. Models are drawn around the published A100 data (speed half to twice, power ± 30 %, SLO
70 to 150 %, rate 10 to 120 %), again where nothing serves a draw or a system that runs all GPUs at one clock has nothing for it at the highest. The number of GPUs is free; objective average-power, and energy, where the
longest batch of a GPU counts, in the last three columns. Time is from the problem to the checked plan, the fastest of three runs; peak memory is the whole
process's, the problem's included. `optimal` searches for as long as it may beyond 17 models, here 10 s.

![Time by models](scale.svg)

";

/// Writes docs/scale.md and docs/scale.svg.
pub fn write(page: &str, curves: &[(&str, Vec<(f64, f64)>)]) {
    let docs = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs");
    std::fs::write(docs.join("scale.md"), format!("{HEAD}{page}")).unwrap();
    std::fs::write(docs.join("scale.svg"), svg(curves)).unwrap();
}

fn svg(curves: &[(&str, Vec<(f64, f64)>)]) -> String {
    let part = |value: f64, [low, high]: [i32; 2]| (value.log10() - f64::from(low)) / f64::from(high - low);
    let x = |models: f64| LEFT + part(models, MODELS) * (WIDTH - LEFT - RIGHT);
    let y = |s: f64| HEIGHT - BOTTOM - part(s, SECONDS).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Time of each system by models</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for power in MODELS[0]..=MODELS[1] {
        let at = x(10f64.powi(power));
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#E4E4E4\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0,
            10u32.pow(power as u32)
        );
    }
    for power in SECONDS[0]..=SECONDS[1] {
        let at = y(10f64.powi(power));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#E4E4E4\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            10f64.powi(power)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">models</text><text x=\"14\" y=\"{TOP}\">s</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 12.0
    );
    let mut ends: Vec<f64> = Vec::new();
    for ((name, curve), colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<String> = curve.iter().map(|(m, s)| format!("{:.1},{:.1}", x(*m), y(*s))).collect();
        let Some((_, last)) = curve.last() else { continue };
        let mut at = y(*last);
        while ends.iter().any(|e| (e - at).abs() < 13.0) {
            at += 13.0;
        }
        ends.push(at);
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>",
            points.join(" "),
            WIDTH - RIGHT + 6.0,
            at + 4.0
        );
    }
    svg + "</svg>\n"
}
