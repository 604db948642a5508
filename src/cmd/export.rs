//! `gpumon export`: a recording as one table, or as a picture.

use std::path::Path;

use anyhow::{Result, bail};
use gpumon_core::header::{Gpu, Header};
use gpumon_monitor::store::Reader;

use super::DONE;
use crate::cli::{ExportArgs, ExportFormat, TableName};
use crate::export::file::{Output, is_stdout};
use crate::export::rows::Select;
use crate::export::sink::Sink;
use crate::export::{self, gmonitor, wide};
use crate::plot;

/// Exit code: the arguments do not go together.
const USAGE: u8 = 2;

/// Exports, or says why the arguments do not go together.
pub fn run(args: &ExportArgs) -> Result<u8> {
    let format = args.format.unwrap_or_else(|| format_of(&args.output));
    if let Some(problem) = conflict(args, format) {
        crate::output::note(format_args!("gpumon: {problem}"));
        return Ok(USAGE);
    }
    let reader = Reader::open(&args.recording)?;
    let select = select(args, reader.header())?;
    match format {
        ExportFormat::Gmonitor => {
            let gpu = only_gpu(args, reader.header())?;
            let mut sink = Sink::Csv(output(args)?, true);
            gmonitor::batches(&reader, select, gpu, |rows| sink.put(rows))?;
            sink.commit()?;
        }
        ExportFormat::Svg => {
            let mut out = output(args)?;
            out.put(plot::power(&reader, select)?.as_bytes())?;
            out.commit()?;
        }
        ExportFormat::Csv | ExportFormat::Jsonl | ExportFormat::Parquet => {
            let name = args.table.map_or(wide::NAME, TableName::lane_name);
            let mut sink = match format {
                ExportFormat::Parquet => Sink::parquet(output(args)?, reader.header(), name),
                ExportFormat::Jsonl => Sink::Jsonl(output(args)?),
                _ => Sink::Csv(output(args)?, true),
            };
            match args.table {
                Some(table) => export::table_named(table, &reader, select, |rows| sink.put(rows))?,
                None => wide::batches(&reader, select, |rows| sink.put(rows))?,
            }
            sink.commit()?;
        }
    }
    Ok(DONE)
}

fn output(args: &ExportArgs) -> Result<Output> {
    Output::create(&args.output, args.force, &args.recording)
}

/// The format that the file's ending means; CSV if it means none.
fn format_of(file: &Path) -> ExportFormat {
    let ending = file.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    match ending.as_str() {
        "" | "csv" => ExportFormat::Csv,
        "jsonl" | "ndjson" => ExportFormat::Jsonl,
        "parquet" => ExportFormat::Parquet,
        "svg" => ExportFormat::Svg,
        other => {
            crate::output::note(format_args!(
                "gpumon: the ending `.{other}` means no format that export knows; writing CSV"
            ));
            ExportFormat::Csv
        }
    }
}

fn conflict(args: &ExportArgs, format: ExportFormat) -> Option<&'static str> {
    let one_shape = matches!(format, ExportFormat::Gmonitor | ExportFormat::Svg);
    if one_shape && (args.table.is_some() || args.wide) {
        return Some(
            "--table and --wide go with csv, jsonl and parquet only; leave them out, or choose another --format",
        );
    }
    if format == ExportFormat::Parquet && is_stdout(&args.output) {
        return Some("parquet cannot go to standard output; name a file with -o");
    }
    None
}

fn select(args: &ExportArgs, header: &Header) -> Result<Select> {
    let gpu = match args.gpu {
        Some(gpu) if gpu >= header.gpus.len() => {
            bail!("--gpu {gpu}: `{}` has {}", args.recording.display(), gpu_list(header))
        }
        gpu => gpu.and_then(|gpu| i32::try_from(gpu).ok()),
    };
    let span = args.window.as_ref();
    Ok(Select {
        gpu,
        from_us: span.and_then(|s| s.from_us).unwrap_or(i64::MIN),
        to_us: span.and_then(|s| s.to_us).unwrap_or(i64::MAX),
    })
}

/// The GPU that a format of one GPU a file is about.
fn only_gpu<'a>(args: &ExportArgs, header: &'a Header) -> Result<&'a Gpu> {
    match (args.gpu, header.gpus.as_slice()) {
        (Some(gpu), gpus) if gpu < gpus.len() => Ok(&gpus[gpu]),
        (_, [only]) => Ok(only),
        _ => bail!(
            "gmonitor writes one GPU a file and `{}` has {}; choose one with --gpu INDEX",
            args.recording.display(),
            gpu_list(header)
        ),
    }
}

fn gpu_list(header: &Header) -> String {
    match header.gpus.len() {
        0 => "no GPUs".into(),
        1 => "one GPU, number 0".into(),
        n => format!("{n} GPUs, numbers 0 to {}", n - 1),
    }
}

impl TableName {
    /// The table's name in the recording.
    fn lane_name(self) -> &'static str {
        use gpumon_monitor::store::Lane;
        match self {
            Self::Fast => Lane::Fast,
            Self::Ring => Lane::Ring,
            Self::Slow => Lane::Slow,
            Self::Counter => Lane::Counter,
            Self::Events => Lane::Events,
            Self::Process => Lane::Process,
        }
        .name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_means_a_format() {
        let format = |file: &str| format_of(Path::new(file));
        assert_eq!(format("-"), ExportFormat::Csv);
        assert_eq!(format("a.CSV"), ExportFormat::Csv);
        assert_eq!(format("a.jsonl"), ExportFormat::Jsonl);
        assert_eq!(format("a.b/c.parquet"), ExportFormat::Parquet);
        assert_eq!(format("a.svg"), ExportFormat::Svg);
        assert_eq!(format("a.txt"), ExportFormat::Csv);
    }
}
