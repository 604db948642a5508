//! From the `[load]` table of a description to a programme.
//!
//! Rule: `kind` says which keys there are; any other key is an error.
//!
//! | kind | keys | what runs |
//! |---|---|---|
//! | `idle` | `context` (false) | nothing |
//! | `constant` | `level` | one level for ever |
//! | `square` | `on_ms`, `off_ms`, `level` | on, then off, for ever |
//! | `steps` | `steps` = list of `duration_ms`, `level`, `context` (true); `repeat` (false) | the steps |
//! | `trace` | `file`; `repeat` (false) | the levels of a CSV file |
//! | `demo` | none | 2 s idle with a context, 3 s full load, 3 s square wave 37/61 ms, again and again |
//!
//! Cases: in a trace a level lasts until the next row's time; the last row's level lasts for ever, or
//! with `repeat` its time is where the trace begins again. Before the first row's time nothing runs.
//! Empty lines and lines that begin with `#` are skipped.
//! Not done here: reading the file.

use serde::Deserialize;
use toml::{Table, Value};

use crate::check::{shown, wrong};
use crate::programme::{Phase, Programme, ProgrammeError};
use crate::spec::{SpecError, shape};

/// Longest phase, ms: ten years. Sums of phases stay far from the ends of an i64 in µs.
const MOST_MS: f64 = 10.0 * 365.0 * 86_400_000.0;

/// The demo's square wave: neither half is a multiple or divisor of a sensor's period.
const SQUARE_US: (i64, i64) = (37_000, 61_000);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Idle {
    #[serde(default)]
    context: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    level: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Square {
    on_ms: f64,
    off_ms: f64,
    level: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    steps: Vec<Step>,
    #[serde(default)]
    repeat: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    duration_ms: f64,
    level: f64,
    #[serde(default = "yes")]
    context: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trace {
    file: String,
    #[serde(default)]
    repeat: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Demo {}

/// The programme of a `[load]` table; the demo if there is none.
pub(crate) fn programme(
    load: Option<Value>,
    load_file: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Programme, SpecError> {
    let mut table = match load {
        None => return demo().map_err(|e| programme_error(&e)),
        Some(Value::Table(table)) => table,
        Some(other) => return Err(wrong("load", shown(&other), "a table with a `kind`")),
    };
    let kind = table.remove("kind");
    let built = match kind.as_ref().and_then(Value::as_str) {
        Some("idle") => Ok(Programme::idle(read::<Idle>(table)?.context)),
        Some("constant") => Programme::constant(read::<Constant>(table)?.level),
        Some("square") => {
            let Square { on_ms, off_ms, level } = read(table)?;
            Programme::square(span_us("load.on_ms", on_ms)?, span_us("load.off_ms", off_ms)?, level)
        }
        Some("steps") => {
            let Steps { steps, repeat } = read(table)?;
            Programme::steps(&phases(&steps)?, repeat)
        }
        Some("trace") => return trace(&read(table)?, load_file),
        Some("demo") => {
            read::<Demo>(table).and_then(|Demo {}| demo().map_err(|e| programme_error(&e))).map(Ok)?
        }
        _ => {
            let found = kind.map_or("nothing".into(), |kind| shown(&kind));
            return Err(wrong("load.kind", found, "one of idle, constant, square, steps, trace, demo"));
        }
    };
    built.map_err(|e| programme_error(&e))
}

fn read<T: serde::de::DeserializeOwned>(table: Table) -> Result<T, SpecError> {
    Table::try_into(table).map_err(|e| match shape(&e) {
        SpecError::Shape { message } => SpecError::Shape { message: format!("table `load`: {message}") },
        other => other,
    })
}

fn programme_error(error: &ProgrammeError) -> SpecError {
    SpecError::Shape { message: format!("table `load`: {error}") }
}

fn span_us(key: &str, ms: f64) -> Result<i64, SpecError> {
    if (0.001..=MOST_MS).contains(&ms) {
        return Ok((ms * 1e3).round() as i64);
    }
    Err(wrong(key, ms, format!("a duration from 0.001 to {MOST_MS} ms")))
}

fn phases(steps: &[Step]) -> Result<Vec<Phase>, SpecError> {
    let phase = |(step, i): (&Step, usize)| {
        let duration_us = span_us(&format!("load.steps[{i}].duration_ms"), step.duration_ms)?;
        Ok(Phase { duration_us, level: step.level, context: step.context })
    };
    steps.iter().zip(0..).map(phase).collect()
}

fn demo() -> Result<Programme, ProgrammeError> {
    let phase = |duration_us, level| Phase { duration_us, level, context: true };
    let mut phases = vec![phase(2_000_000, 0.0), phase(3_000_000, 1.0)];
    let mut left_us = 3_000_000;
    for (duration_us, level) in [(SQUARE_US.0, 1.0), (SQUARE_US.1, 0.0)].into_iter().cycle() {
        phases.push(phase(duration_us.min(left_us), level));
        left_us -= duration_us;
        if left_us <= 0 {
            break;
        }
    }
    Programme::steps(&phases, true)
}

fn trace(
    trace: &Trace,
    load_file: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Programme, SpecError> {
    let file = &trace.file;
    let text = load_file(file).map_err(|message| SpecError::TraceFile { file: file.clone(), message })?;
    let rows = rows(file, &text)?;
    let phase = |duration_us, level| Phase { duration_us, level, context: true };
    let mut phases = Vec::with_capacity(rows.len());
    if let Some(&(first_us, _)) = rows.first().filter(|(us, _)| *us > 0) {
        phases.push(phase(first_us, 0.0));
    }
    phases.extend(rows.windows(2).map(|pair| phase(pair[1].0 - pair[0].0, pair[0].1)));
    let built = Programme::steps(&phases, trace.repeat);
    let last = rows.last().map_or(0.0, |(_, level)| *level);
    built.and_then(|programme| programme.then_constant(last)).map_err(|e| programme_error(&e))
}

/// Times (µs) and levels of a trace, times ascending.
fn rows(file: &str, text: &str) -> Result<Vec<(i64, f64)>, SpecError> {
    let wrong = |line, column, found: &str, expected: &str| SpecError::Trace {
        file: file.into(),
        line,
        column,
        found: format!("`{found}`"),
        expected: expected.into(),
    };
    let mut lines = text.lines().map(str::trim).zip(1usize..);
    let mut lines = lines.by_ref().filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    match lines.next() {
        Some((header, _)) if header.split(',').map(str::trim).eq(["time_ms", "level"]) => {}
        Some((header, line)) => return Err(wrong(line, "time_ms", header, "the header time_ms,level")),
        None => return Err(wrong(1, "time_ms", "", "the header time_ms,level")),
    }
    let mut rows: Vec<(i64, f64)> = Vec::new();
    for (row, line) in lines {
        let (time, level) = row.split_once(',').ok_or_else(|| wrong(line, "level", row, "two columns"))?;
        let (time, level) = (time.trim(), level.trim());
        let time_ms = time.parse().ok().filter(|ms| (0.0..=MOST_MS).contains(ms));
        let time_ms: f64 = time_ms.ok_or_else(|| wrong(line, "time_ms", time, "milliseconds, 0 or more"))?;
        let time_us = (time_ms * 1e3).round() as i64;
        if rows.last().is_some_and(|(before_us, _)| time_us <= *before_us) {
            return Err(wrong(line, "time_ms", time, "a time at least 1 µs after the row before"));
        }
        let share = level.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        rows.push((
            time_us,
            share.ok_or_else(|| wrong(line, "level", level, "a share of full load, 0 to 1"))?,
        ));
    }
    match rows.is_empty() {
        true => Err(wrong(2, "time_ms", "", "at least one row")),
        false => Ok(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(load: &str, csv: &str) -> Result<Programme, SpecError> {
        let load = load.parse::<Table>().unwrap();
        programme(Some(Value::Table(load)), &mut |_| Ok(csv.to_owned()))
    }

    fn phase(duration_us: i64, level: f64) -> Phase {
        Phase { duration_us, level, context: true }
    }

    #[test]
    fn every_kind_gives_its_programme() {
        assert_eq!(parse("kind = \"idle\"", "").unwrap(), Programme::idle(false));
        assert_eq!(parse("kind = \"idle\"\ncontext = true", "").unwrap(), Programme::idle(true));
        assert_eq!(parse("kind = \"constant\"\nlevel = 0.3", "").unwrap(), Programme::constant(0.3).unwrap());
        let steps = "kind = \"steps\"\nrepeat = true\nsteps = [{ duration_ms = 1.5, level = 1 }, \
                     { duration_ms = 2, level = 0, context = false }]";
        let off = Phase { duration_us: 2_000, level: 0.0, context: false };
        assert_eq!(parse(steps, "").unwrap(), Programme::steps(&[phase(1_500, 1.0), off], true).unwrap());
        let demo = parse("kind = \"demo\"", "").unwrap();
        assert_eq!(demo.phases.iter().map(|(us, _)| us).sum::<i64>(), 8_000_000);
        assert!(demo.repeat);
    }

    #[test]
    fn a_trace_holds_each_level_until_the_next_row() {
        let csv = "# measured\ntime_ms,level\r\n\n10, 0.5\n20,1\n50,0.25\n";
        let load = "kind = \"trace\"\nfile = \"x.csv\"";
        let phases = [phase(10_000, 0.0), phase(10_000, 0.5), phase(30_000, 1.0)];
        let once = Programme::steps(&phases, false).unwrap().then_constant(0.25).unwrap();
        assert_eq!(parse(load, csv).unwrap(), once);
        let again = parse(&format!("{load}\nrepeat = true"), csv).unwrap();
        assert_eq!((again.repeat, again.phases), (true, once.phases));
    }

    #[test]
    fn errors_name_key_or_line_and_column() {
        let trace = "kind = \"trace\"\nfile = \"x.csv\"";
        for (load, csv, expected) in [
            ("level = 1", "", &["`load.kind`", "nothing", "square"][..]),
            ("kind = \"sine\"", "", &["`load.kind`", "sine", "square"]),
            ("kind = \"square\"\non_ms = 1\nlevel = 1", "", &["`load`", "missing field `off_ms`"]),
            ("kind = \"square\"\non_ms = 0\noff_ms = 1\nlevel = 1", "", &["`load.on_ms`", "found 0"]),
            ("kind = \"constant\"\nlevel = 1\nduty = 2", "", &["`load`", "unknown field `duty`", "`level`"]),
            ("kind = \"constant\"\nlevel = 50", "", &["`load`", "level 50", "0 to 1"]),
            (
                "kind = \"steps\"\nsteps = [{ duration_ms = -1, level = 1 }]",
                "",
                &["load.steps[0].duration_ms", "-1"],
            ),
            ("kind = \"steps\"\nsteps = []\nrepeat = true", "", &["no phases"]),
            (trace, "t,l\n", &["x.csv", "line 1", "time_ms,level"]),
            (trace, "time_ms,level\n", &["at least one row"]),
            (trace, "time_ms,level\n0,0.5\nx,1\n", &["line 3", "column time_ms", "`x`"]),
            (trace, "time_ms,level\n0,0.5\n\n5,2\n", &["line 4", "column level", "`2`", "0 to 1"]),
            (trace, "time_ms,level\n5,0.5\n5,1\n", &["line 3", "column time_ms", "after the row before"]),
            (trace, "time_ms,level\n5\n", &["line 2", "column level", "two columns"]),
        ] {
            let found = parse(load, csv).unwrap_err().to_string();
            for part in expected {
                assert!(found.contains(part), "{load:?} {csv:?} gives {found:?}, which lacks {part:?}");
            }
        }
    }
}
