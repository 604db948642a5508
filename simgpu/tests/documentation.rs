//! docs/simulated-gpu.md names every key and sensor, and its examples work.

use gpumon_simgpu::{Sensor, Spec};
use toml::{Table, Value};

const GUIDE: &str = include_str!("../../docs/simulated-gpu.md");
const H200: &str = include_str!("../specs/h200.toml");

fn keys(prefix: &str, table: &Table, found: &mut Vec<String>) {
    for (key, value) in table {
        match value {
            Value::Table(inner) => keys(&format!("{prefix}{key}."), inner, found),
            _ => found.push(format!("{prefix}{key}")),
        }
    }
}

#[test]
fn every_key_and_sensor_is_described() {
    let mut found = Vec::new();
    keys("", &H200.parse().unwrap(), &mut found);
    for key in found.iter().filter(|key| !key.starts_with("sensors.cost_us.")) {
        assert!(GUIDE.contains(&format!("`{key}`")), "docs/simulated-gpu.md lacks `{key}`");
    }
    for sensor in Sensor::ALL {
        assert!(GUIDE.contains(&format!("`{sensor}`")), "docs/simulated-gpu.md lacks the sensor `{sensor}`");
    }
}

#[test]
fn the_examples_work() {
    let examples: Vec<&str> =
        GUIDE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 2);
    for example in examples {
        let spec = Spec::parse(example, &mut |_| Err("no files here".into()));
        assert!(spec.is_ok(), "{example}\n{spec:?}");
    }
}
