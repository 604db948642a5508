//! What an external meter said about a GPU's own power sensors: gain and offset, a GPU each, as TOML.
//!
//! ```toml
//! [[gpu]]
//! uuid = "GPU-1b2c…"
//! gain = 1.058               # true power = gain × reading + offset
//! gain_within_pct = 0.8      # 90 % of gains lie this close, %
//! offset_w = 1.5             # optional, 0
//! offset_within_w = 0.5      # optional, 0
//! source = "meter, date, how"
//! ```
//!
//! Rule: a correction belongs to one card, because cards of one kind differ ("Part-time Power Measurements", SC'24:
//! −5.8 to +13 %). Keys that are not listed, values out of range and a UUID named twice are errors that name the place.
//! A GPU that is not named is not corrected.
//! Not done here: applying it to figures (the summary does), finding it.

use toml::{Table, Value};

/// Gains beyond this are a mistake in the file, not a sensor.
const GAINS: std::ops::RangeInclusive<f64> = 0.5..=2.0;
const KEYS: &str = "uuid, gain, gain_within_pct, offset_w, offset_within_w, source";

/// All corrections of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// A GPU each.
    pub gpus: Vec<Correction>,
}

/// The correction of one GPU's power.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// The GPU.
    pub uuid: String,
    /// True power over reading, once the offset is off.
    pub gain: f64,
    /// Half width of the gain's 90 % interval, %.
    pub gain_within_pct: f64,
    /// True power at a reading of 0, W.
    pub offset_w: f64,
    /// Half width of the offset's 90 % interval, W.
    pub offset_within_w: f64,
    /// Where it comes from.
    pub source: String,
}

/// Why a text is no calibration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrationError {
    /// Not TOML.
    #[error("it is not TOML: {0}")]
    Syntax(String),
    /// A key is missing, unknown, or has a value that it cannot have.
    #[error("key `{key}`: found {found}, expected {expected}")]
    Key {
        /// The key's place.
        key: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
}

fn wrong(key: String, found: impl ToString, expected: impl Into<String>) -> CalibrationError {
    CalibrationError::Key { key, found: found.to_string(), expected: expected.into() }
}

impl Calibration {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// [`CalibrationError`], which names the key.
    pub fn parse(text: &str) -> Result<Self, CalibrationError> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| {
            CalibrationError::Syntax(e.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
        })?;
        if let Some(other) = table.keys().find(|key| *key != "gpu") {
            return Err(wrong(other.clone(), "an unknown key", "only [[gpu]] tables"));
        }
        let list = table.get("gpu").and_then(Value::as_array);
        let list = list.filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| wrong("gpu".into(), "none", "one [[gpu]] table a GPU"))?;
        let mut gpus: Vec<Correction> = Vec::with_capacity(list.len());
        for (index, value) in list.iter().enumerate() {
            let one = correction(index, value)?;
            if gpus.iter().any(|known| known.uuid == one.uuid) {
                return Err(wrong(format!("gpu[{index}].uuid"), one.uuid, "each GPU once"));
            }
            gpus.push(one);
        }
        Ok(Self { gpus })
    }

    /// The correction of a GPU.
    pub fn of(&self, uuid: &str) -> Option<&Correction> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }
}

/// A value as the file has it; what is inside lists and tables is not told.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{text}\""),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(yes) => yes.to_string(),
        other => format!("a {}", other.type_str()),
    }
}

fn correction(index: usize, value: &Value) -> Result<Correction, CalibrationError> {
    let place = |key: &str| format!("gpu[{index}].{key}");
    let table = value.as_table().ok_or_else(|| wrong(format!("gpu[{index}]"), shown(value), "a table"))?;
    if let Some(key) = table.keys().find(|key| !KEYS.split(", ").any(|known| known == *key)) {
        return Err(wrong(place(key), "an unknown key", format!("one of {KEYS}")));
    }
    let found = |key: &str| table.get(key).map_or("nothing".into(), shown);
    let text = |key: &str, expected: &str| {
        let text = table.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        text.map(str::to_owned).ok_or_else(|| wrong(place(key), found(key), expected))
    };
    let number = |key: &str, default: Option<f64>, range: std::ops::RangeInclusive<f64>, unit: &str| {
        let given = match table.get(key) {
            None => default,
            Some(Value::Float(number)) => Some(*number),
            Some(Value::Integer(number)) => Some(*number as f64),
            Some(_) => None,
        };
        given.filter(|number| range.contains(number)).ok_or_else(|| {
            wrong(place(key), found(key), format!("a number from {} to {}{unit}", range.start(), range.end()))
        })
    };
    Ok(Correction {
        uuid: text("uuid", "a GPU's UUID, such as `gpumon devices` lists")?,
        gain: number("gain", None, GAINS, "")?,
        gain_within_pct: number("gain_within_pct", None, 0.0..=50.0, " (%)")?,
        offset_w: number("offset_w", Some(0.0), -100.0..=100.0, " (W)")?,
        offset_within_w: number("offset_within_w", Some(0.0), 0.0..=100.0, " (W)")?,
        source: text("source", "the meter, the date and how it was done")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "[[gpu]]\nuuid = \"GPU-1\"\ngain = 1.058\ngain_within_pct = 1\nsource = \"meter\"\n";

    #[test]
    fn a_file_is_read_and_a_gpu_is_found_by_uuid() {
        let both = Calibration::parse(&format!("{ONE}offset_w = -2\n{}", ONE.replace("-1", "-2"))).unwrap();
        assert_eq!(both.of("GPU-1").map(|c| (c.gain, c.offset_w)), Some((1.058, -2.0)));
        assert_eq!(both.of("GPU-2").map(|c| c.offset_w), Some(0.0));
        assert_eq!(both.of("GPU-3"), None);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, says) in [
            ("", "key `gpu`: found none, expected one [[gpu]] table a GPU"),
            ("gpu = 5\n", "key `gpu`"),
            ("x = 5\n", "key `x`: found an unknown key"),
            ("[[gpu]\n", "not TOML"),
            (
                &ONE.replace("gain = 1.058", "gain = 5.8"),
                "key `gpu[0].gain`: found 5.8, expected a number from 0.5 to 2",
            ),
            (&ONE.replace("1.058", "\"1\""), "key `gpu[0].gain`: found \"1\""),
            (&ONE.replace("gain = 1.058", "gain = nan"), "key `gpu[0].gain`"),
            (&ONE.replace("gain = 1.058\n", ""), "key `gpu[0].gain`: found nothing"),
            (&ONE.replace("gain = ", "gian = "), "key `gpu[0].gian`: found an unknown key"),
            (&ONE.replace("\"meter\"", "\" \""), "key `gpu[0].source`"),
            (&format!("{ONE}offset_within_w = -1\n"), "key `gpu[0].offset_within_w`: found -1"),
            (&format!("{ONE}{ONE}"), "key `gpu[1].uuid`: found GPU-1, expected each GPU once"),
        ] {
            let said = Calibration::parse(text).unwrap_err().to_string();
            assert!(said.contains(says), "{text:?} gives {said:?}, which lacks {says:?}");
        }
    }
}
