//! Pictures: power over time (here), held-out points ([`held_out`]), a plan's GPUs ([`plan`]), a fit along each axis (`panels`).
//!
//! Power over time, the driver's average beside the ring's readings. Rule: one panel a GPU; at most four points a curve and pixel column, so that no peak is lost (see
//! [`decimate`]), joined by straight lines. Where there are no ring readings the
//! short-window (instant) power takes their place. Curves are cut where readings are missing for a second or
//! three ticks. The picture is self-contained SVG on white; text stays text, in the reader's own sans-serif
//! font; whatever was simulated says so.
//!
//! Memory holds the points drawn, a row group, and the footers of the tables.
//!
//! Not done here: windows, marks and losses are not drawn.

use anyhow::{Result, anyhow, bail};
use gpumon_core::header::{Gpu, Header};
use gpumon_core::rows::{FastRow, RingRow};
use gpumon_monitor::store::{Reader, Row};

use crate::export::rows::{OfGpu, Rows, Select};

mod decimate;
mod draw;
pub mod held_out;
pub mod panels;
pub mod plan;
pub mod style;

use decimate::{Columns, Curve, Decimator};

/// Pixel columns of a curve; with four points each, about 4000 points.
const PIXEL_COLUMNS: i64 = 1000;
/// The least time without readings that cuts a curve, µs.
const GAP_US: i64 = 1_000_000;

/// What a picture shows.
struct Picture {
    title: String,
    subtitle: String,
    /// Start and end, µs.
    span: (i64, i64),
    panels: Vec<Panel>,
}

/// One GPU.
struct Panel {
    name: String,
    average: Curve,
    ring: Curve,
    instant: Curve,
}

impl Panel {
    /// The curve beside the average, and its name.
    fn quick(&self, span_us: i64) -> Option<(&Curve, String)> {
        if self.ring.readings > 0 {
            let per_s = self.ring.readings as f64 * 1e6 / span_us.max(1) as f64;
            return Some((&self.ring, format!("the driver's ring of readings, {per_s:.0} a second")));
        }
        (self.instant.readings > 0).then(|| (&self.instant, "instant power".to_owned()))
    }
}

/// Draws the power that `select` takes of a recording as SVG.
pub fn power(reader: &Reader, select: Select) -> Result<String> {
    let header = reader.header();
    let end = match header.duration_us {
        Some(us) => us,
        None => last_time(reader)?,
    };
    let (from_us, to_us) = (select.from_us.max(0), select.to_us.min(end));
    if from_us >= to_us {
        bail!(
            "there is nothing to draw: the recording is {:.3} s long; choose a --window in it",
            end as f64 / 1e6
        );
    }
    let select = Select { from_us, to_us, ..select };
    let picture = Picture {
        title: title(header, select, to_us - from_us),
        subtitle: format!("Power, host {}", header.host),
        span: (from_us, to_us),
        panels: panels(reader, select)?,
    };
    if picture.panels.iter().all(|p| p.average.readings == 0 && p.quick(1).is_none()) {
        bail!("there is nothing to draw: the recording has no power readings in this span");
    }
    draw::svg(&picture).map_err(|e| anyhow!("cannot draw: {e}"))
}

fn last_time(reader: &Reader) -> Result<i64> {
    let mut last = 0;
    for row in Rows::<FastRow>::of(reader) {
        last = row?.mono_us.max(last);
    }
    Ok(last)
}

fn title(header: &Header, select: Select, span_us: i64) -> String {
    let mut names: Vec<&str> = chosen(header, select).map(|(_, gpu)| gpu.name.as_str()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    let mut title =
        if count > names.len() { format!("{count} × {}", names.join(", ")) } else { names.join(", ") };
    if header.simulated && !title.contains("simulated") {
        title.push_str(" (simulated)");
    }
    format!("{title}, {}", length(span_us))
}

fn length(us: i64) -> String {
    match us as f64 / 1e6 {
        s if s >= 3.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 600.0 => format!("{:.1} min", s / 60.0),
        s => format!("{s:.1} s"),
    }
}

fn chosen(header: &Header, select: Select) -> impl Iterator<Item = (usize, &Gpu)> {
    let wanted = move |index: usize| select.gpu.is_none_or(|gpu| usize::try_from(gpu) == Ok(index));
    header.gpus.iter().enumerate().filter(move |(index, _)| wanted(*index))
}

fn panels(reader: &Reader, select: Select) -> Result<Vec<Panel>> {
    let header = reader.header();
    let tick_us = 1e6 / header.rate_hz.max(1e-3);
    let columns = Columns {
        from_us: select.from_us,
        to_us: select.to_us,
        count: PIXEL_COLUMNS,
        gap_us: GAP_US.max((3.0 * tick_us) as i64),
    };
    let gpus = header.gpus.len();
    let curves = || (0..gpus).map(|_| Decimator::new(columns)).collect::<Vec<_>>();
    let (mut average, mut instant, mut ring) = (curves(), curves(), curves());
    each::<FastRow>(reader, select, |gpu, row| {
        push(average.get_mut(gpu), row.mono_us, row.power_average_mw);
        push(instant.get_mut(gpu), row.mono_us, row.power_instant_mw);
    })?;
    each::<RingRow>(reader, select, |gpu, row| push(ring.get_mut(gpu), row.mono_us, Some(row.power_mw)))?;
    let curves = average.into_iter().zip(instant).zip(ring);
    let panels =
        header.gpus.iter().zip(curves).enumerate().map(|(index, (gpu, ((average, instant), ring)))| Panel {
            name: format!("GPU {index}  {}  {}", gpu.name, gpu.uuid),
            average: average.finish(),
            ring: ring.finish(),
            instant: instant.finish(),
        });
    let chosen: Vec<usize> = chosen(header, select).map(|(index, _)| index).collect();
    Ok(panels.enumerate().filter(|(index, _)| chosen.contains(index)).map(|(_, panel)| panel).collect())
}

fn each<R: Row + OfGpu>(reader: &Reader, select: Select, mut take: impl FnMut(usize, R)) -> Result<()> {
    for row in Rows::<R>::of(reader) {
        let row = row?;
        if let Some(gpu) = row.of_gpu().and_then(|gpu| usize::try_from(gpu).ok())
            && select.takes(row.of_gpu(), row.mono_us())
        {
            take(gpu, row);
        }
    }
    Ok(())
}

fn push(curve: Option<&mut Decimator>, mono_us: i64, power_mw: Option<i32>) {
    if let (Some(curve), Some(mw)) = (curve, power_mw) {
        curve.push((mono_us, f64::from(mw) / 1e3));
    }
}
