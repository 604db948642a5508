//! Profiles as CSV: ours, EnerTune's, ParvaGPU's.
//!
//! Rule: columns are found by name, in any order; the header decides which layout it is. Errors name the line, counted
//! from 1 with the header, and the column.

use std::collections::BTreeMap;
use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};

use super::clean::{check, clean};
use super::{Profile, ProfileError, SETS, is_of_sets};
use crate::profile::ProfileRow;
use crate::share::Share;
use crate::table::Table;

/// Marks a file of ours, in which figures may be absent.
pub(super) const OURS: &str = "valid";
/// Marks a file of ParvaGPU's.
const PARVA: &str = "Workload Number";
const PARVA_COLUMNS: [&str; 5] = ["Mig instance", "Batch size", PARVA, "Throughput", "Latency"];
/// Highest SM clock of an A100, MHz (data sheet).
const A100_MAX_MHZ: i32 = 1410;
/// What each row of a file that is not ours must hold.
const FIGURES: [&str; 4] = ["avg_power_draw", "dynamic_power_draw", "throughput", "latency"];
const PUBLISHED: &str =
    "model,batch_size,mig_slices,frequency,avg_power_draw,dynamic_power_draw,throughput,latency";

/// The profile that a CSV text holds; `path` is for messages, and for the model's name in ParvaGPU's layout.
pub fn parse_csv(text: &str, path: &Path) -> Result<Profile, ProfileError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(ProfileError::file(
            path,
            format!("empty; expected CSV with a header such as {PUBLISHED}"),
        ));
    }
    let mut reader = ReaderBuilder::new().flexible(true).trim(Trim::Headers).from_reader(text.as_bytes());
    let unreadable = |e: csv::Error| ProfileError::file(path, format!("not readable as CSV: {e}"));
    let header = reader.headers().map_err(unreadable)?.clone();
    let mut notices = Vec::new();
    let layout = Layout::new(&header, path, &mut notices)?;
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        if record.iter().all(|field| field.trim().is_empty()) {
            continue;
        }
        let line = Line { record: &record, layout: &layout, text, path };
        if record.len() != header.len() {
            return Err(line.wrong_shape(header.len()));
        }
        let row = if layout.parva { line.parva_row()? } else { line.row()? };
        check(&row).map_err(|wrong| line.wrong(wrong.column, wrong.found, wrong.expected))?;
        rows.push(row);
    }
    if rows.is_empty() {
        return Err(ProfileError::file(path, "a header without rows; add a row for each measured point"));
    }
    let rows = clean(rows, &path.display().to_string(), &mut notices);
    Ok(Profile { rows, notices })
}

/// Rows as our CSV.
pub(super) fn bytes(rows: &[ProfileRow], path: &Path) -> Result<Vec<u8>, ProfileError> {
    let failed =
        |e: &dyn std::fmt::Display| ProfileError::file(path, format!("cannot be made into CSV: {e}"));
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(ProfileRow::columns().iter().map(|c| c.name)).map_err(|e| failed(&e))?;
    for row in rows {
        writer.serialize(row).map_err(|e| failed(&e))?;
    }
    writer.into_inner().map_err(|e| failed(&e))
}

struct Layout {
    columns: BTreeMap<String, usize>,
    parva: bool,
    ours: bool,
}

impl Layout {
    fn new(header: &StringRecord, path: &Path, notices: &mut Vec<String>) -> Result<Self, ProfileError> {
        let mut columns = BTreeMap::new();
        for (i, name) in header.iter().enumerate() {
            if columns.insert(name.to_owned(), i).is_some() {
                return Err(ProfileError::Line {
                    path: path.into(),
                    place: "line 1".into(),
                    what: format!("two columns are called `{name}`; remove one"),
                });
            }
        }
        if is_of_sets(columns.keys().map(String::as_str)) {
            return Err(ProfileError::file(path, SETS));
        }
        let (parva, ours) = (columns.contains_key(PARVA), columns.contains_key(OURS));
        let layout = Self { columns, parva, ours };
        let known: Vec<&str> = match parva {
            true => PARVA_COLUMNS.to_vec(),
            false => ProfileRow::columns().into_iter().map(|c| c.name).collect(),
        };
        let unknown: Vec<String> = layout
            .columns
            .keys()
            .filter(|name| !known.contains(&name.as_str()))
            .map(|name| quoted(name))
            .collect();
        let missing = layout.missing();
        if !missing.is_empty() {
            let also = match unknown.is_empty() {
                true => String::new(),
                false => format!(", and these are not known: {}", some(&unknown)),
            };
            let what = format!(
                "the header lacks {}{also}; expected columns such as {PUBLISHED}",
                missing.join(", ")
            );
            return Err(ProfileError::Line { path: path.into(), place: "line 1".into(), what });
        }
        let name = path.display();
        if !unknown.is_empty() {
            notices.push(format!(
                "{name}: columns that a profile does not have are left out: {}",
                some(&unknown)
            ));
        }
        if parva {
            notices.push(format!(
                "{name}: ParvaGPU's files name no clock; {A100_MAX_MHZ} MHz, the highest of the A100 that they are \
                 of, is assumed"
            ));
        }
        Ok(layout)
    }

    fn missing(&self) -> Vec<String> {
        let needed: Vec<&str> = match (self.parva, self.ours) {
            (true, _) => PARVA_COLUMNS.to_vec(),
            (false, true) => vec!["model", "batch_size", "frequency"],
            (false, false) => ["model", "batch_size", "frequency"].into_iter().chain(FIGURES).collect(),
        };
        let mut missing: Vec<String> =
            needed.iter().filter(|c| !self.columns.contains_key(**c)).map(|c| format!("`{c}`")).collect();
        if !self.parva && !self.columns.contains_key("mig_slices") && !self.columns.contains_key("share") {
            missing.push("`mig_slices` or `share`".into());
        }
        missing
    }
}

struct Line<'a> {
    record: &'a StringRecord,
    layout: &'a Layout,
    text: &'a str,
    path: &'a Path,
}

impl Line<'_> {
    fn row(&self) -> Result<ProfileRow, ProfileError> {
        let slices = self.i32("mig_slices")?;
        let share = match (self.number("share")?, slices) {
            (Some(share), _) => share,
            (None, Some(slices)) => u8::try_from(slices).map_or(f64::NAN, |s| Share::Mig(s).fraction()),
            (None, None) => {
                return Err(self.wrong("mig_slices", "nothing".into(), "slices of 7, or a `share`"));
            }
        };
        // A share of slices that no GPU has is reported as the slices that they are.
        let share = if (0.0..=1.0).contains(&share) || self.cell("share").is_some() { share } else { 1.0 };
        let row = ProfileRow {
            gpu_name: self.text("gpu_name"),
            gpu_uuid: self.text("gpu_uuid"),
            simulated: self.yes_or_no("simulated")?,
            share_kind: match self.cell("share_kind") {
                Some(kind) => Some(kind.to_owned()),
                None if self.layout.ours => None,
                None => slices.map(|_| "mig".to_owned()),
            },
            mig_slices: slices,
            processes: self.i32("processes")?,
            clock_locked: self.yes_or_no("clock_locked")?,
            sm_mhz_achieved: self.number("sm_mhz_achieved")?,
            power_limit_w: self.i32("power_limit_w")?,
            avg_power_draw: self.number("avg_power_draw")?,
            power_ci95: self.number("power_ci95")?,
            dynamic_power_draw: self.number("dynamic_power_draw")?,
            throughput: self.number("throughput")?,
            latency: self.number("latency")?,
            latency_ci95: self.number("latency_ci95")?,
            latency_p50: self.number("latency_p50")?,
            latency_p95: self.number("latency_p95")?,
            latency_p99: self.number("latency_p99")?,
            energy_per_item: self.number("energy_per_item")?,
            mem_bytes: self.integer("mem_bytes")?,
            sm_util_pct: self.number("sm_util_pct")?,
            sm_occupancy_pct: self.number("sm_occupancy_pct")?,
            tensor_util_pct: self.number("tensor_util_pct")?,
            dram_util_pct: self.number("dram_util_pct")?,
            temp_c: self.number("temp_c")?,
            n_samples: self.integer("n_samples")?,
            wall_s: self.number("wall_s")?,
            wall_energy_j: self.number("wall_energy_j")?,
            valid: match self.layout.ours {
                true => self.needed(OURS, self.yes_or_no(OURS)?)?,
                false => true,
            },
            reason: self.text("reason"),
            ..ProfileRow::new(
                self.cell("model").unwrap_or_default(),
                self.needed("batch_size", self.i32("batch_size")?)?,
                share,
                self.needed("frequency", self.i32("frequency")?)?,
            )
        };
        if !self.layout.ours {
            for column in FIGURES {
                self.needed(column, self.number(column)?)?;
            }
        }
        Ok(row)
    }

    fn parva_row(&self) -> Result<ProfileRow, ProfileError> {
        let [slices, batch, processes] = [PARVA_COLUMNS[0], PARVA_COLUMNS[1], PARVA]
            .map(|column| self.i32(column).and_then(|value| self.needed(column, value)));
        let (slices, processes) = (slices?, processes?);
        let [throughput, latency_s] = [PARVA_COLUMNS[3], PARVA_COLUMNS[4]].map(|column| {
            let value = self.needed(column, self.number(column)?)?;
            match value >= 0.0 {
                true => Ok(value),
                false => Err(self.wrong(column, format!("`{value}`"), "a finite number, 0 or above")),
            }
        });
        let (throughput, latency_s) = (throughput?, latency_s?);
        let model = self.path.file_stem().map_or(String::new(), |s| s.to_string_lossy().into_owned());
        let share = u8::try_from(slices).map_or(1.0, |s| Share::Mig(s).fraction()).clamp(0.01, 1.0);
        let mut row = ProfileRow::new(&model, batch?, share, A100_MAX_MHZ);
        row.share_kind = Some("mig".into());
        row.mig_slices = Some(slices);
        row.processes = Some(processes);
        if throughput == 0.0 && latency_s == 0.0 {
            row.valid = false;
            row.reason = Some("did not fit into the memory".into());
        } else {
            row.throughput = Some(throughput * f64::from(processes));
            // Their seconds have three decimals; whole nanoseconds keep 0.058 s at 58 ms.
            row.latency = Some((latency_s * 1e9).round() / 1e6);
        }
        Ok(row)
    }

    /// A cell without the spaces around it; `None` if it is empty or there is no such column.
    fn cell(&self, column: &str) -> Option<&str> {
        let cell = self.record.get(*self.layout.columns.get(column)?)?.trim();
        (!cell.is_empty()).then_some(cell)
    }

    /// A cell as it stands.
    fn text(&self, column: &str) -> Option<String> {
        let cell = self.record.get(*self.layout.columns.get(column)?)?;
        (!cell.is_empty()).then(|| cell.to_owned())
    }

    fn number(&self, column: &str) -> Result<Option<f64>, ProfileError> {
        let Some(cell) = self.cell(column) else { return Ok(None) };
        match cell.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Some(value)),
            _ => Err(self.wrong(column, quoted(cell), "a finite number")),
        }
    }

    fn integer(&self, column: &str) -> Result<Option<i64>, ProfileError> {
        let Some(cell) = self.cell(column) else { return Ok(None) };
        let whole = |v: f64| (v.fract() == 0.0 && v.abs() < 2f64.powi(53)).then_some(v as i64);
        let value = cell.parse::<i64>().ok().or_else(|| cell.parse().ok().and_then(whole));
        value.map(Some).ok_or_else(|| self.wrong(column, quoted(cell), "a whole number"))
    }

    fn i32(&self, column: &str) -> Result<Option<i32>, ProfileError> {
        let narrow = |v: i64| {
            i32::try_from(v).map_err(|_| self.wrong(column, format!("`{v}`"), "a whole number below 2³¹"))
        };
        self.integer(column)?.map(narrow).transpose()
    }

    fn yes_or_no(&self, column: &str) -> Result<Option<bool>, ProfileError> {
        match self.cell(column) {
            None => Ok(None),
            Some("true" | "True" | "TRUE" | "1") => Ok(Some(true)),
            Some("false" | "False" | "FALSE" | "0") => Ok(Some(false)),
            Some(other) => Err(self.wrong(column, quoted(other), "`true` or `false`")),
        }
    }

    fn needed<T>(&self, column: &str, value: Option<T>) -> Result<T, ProfileError> {
        value.ok_or_else(|| self.wrong(column, "nothing".into(), "a value"))
    }

    fn wrong(&self, column: &str, found: String, expected: &'static str) -> ProfileError {
        let column = match (self.layout.parva, column) {
            (true, "mig_slices") => PARVA_COLUMNS[0],
            (true, "batch_size") => PARVA_COLUMNS[1],
            (true, "processes") => PARVA,
            (true, "throughput") => PARVA_COLUMNS[3],
            (true, "latency") => PARVA_COLUMNS[4],
            (_, column) => column,
        };
        let column = column.to_owned();
        ProfileError::Value { path: self.path.into(), place: self.place(), column, found, expected }
    }

    fn wrong_shape(&self, columns: usize) -> ProfileError {
        ProfileError::Line {
            path: self.path.into(),
            place: self.place(),
            what: format!(
                "{} values, but the header names {columns} columns; is a comma or a quote missing, or one too many?",
                self.record.len()
            ),
        }
    }

    /// `line N`. The reader's position is before empty lines that it skipped; they are stepped over here.
    fn place(&self) -> String {
        let start = self.record.position().map_or(0, |p| p.byte() as usize);
        let bytes = self.text.as_bytes();
        let skipped = bytes.iter().skip(start).take_while(|b| matches!(b, b'\n' | b'\r')).count();
        let before = bytes.iter().take(start + skipped).filter(|b| **b == b'\n').count();
        format!("line {}", before + 1)
    }
}

/// The first few of a list of names, and how many more there are.
pub(super) fn some(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.get(SHOWN..) {
        Some(more @ [_, ..]) => format!("{} and {} more", names[..SHOWN].join(", "), more.len()),
        _ => names.join(", "),
    }
}

pub(super) fn quoted(cell: &str) -> String {
    const SHOWN: usize = 40;
    match cell.chars().count() > SHOWN {
        true => format!("`{}…`", cell.chars().take(SHOWN).collect::<String>().escape_debug()),
        false => format!("`{}`", cell.escape_debug()),
    }
}
