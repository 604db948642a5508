//! The page of a model file: how good the fits are, held-out points, residuals along each axis, the surfaces.
//!
//! Rule: measured values and predictions beside them are those of points that were left out of the fit (`held_out_points` of the
//! file), never of points that a fit has seen; dynamic power is average power less the file's base. Surfaces are what the file predicts, at the levels that were measured: along the
//! clock and the batch with a line a share, along the share with a line a batch; what a panel does not vary is the middle batch or
//! the highest clock. Dots are the measured values there.
//!
//! Cases: an axis with one level has no panels. A model without held-out points has surfaces over its ranges, and its text says so.
//! Where processes differ, the surfaces are those of the fewest.
//! Not done here: intervals as bands; their factors stand in the table.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::units::Megahertz;
use gpumon_fit::colocation::quality;
use gpumon_fit::evaluate::ErrorStats;
use gpumon_fit::held_out::{Compared, KeptPoint};
use gpumon_fit::model_file::ModelFile;
use gpumon_fit::models::Model;
use gpumon_fit::point::{Point, Share};

use super::Page;
use crate::plot::held_out::{self, Figure};
use crate::plot::panels::{self, Axis, Panel};

/// A figure of a model.
struct Kind {
    name: &'static str,
    held_out: fn(&KeptPoint, &ModelFile) -> Option<Compared>,
    predicted: fn(&Model, &Point, &ModelFile) -> Option<f64>,
    /// Whether equal ratios are equal lengths in pictures of surfaces.
    log: bool,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "power of the GPU (W)",
        held_out: |p, _| p.average_w,
        predicted: |m, p, f| m.predict(p, f.base.as_ref()).ok()?.avg_power_draw.map(|i| i.value),
        log: false,
    },
    Kind {
        name: "dynamic power (W)",
        held_out: |p, f| {
            let (both, base_w) = (p.average_w?, f.base.as_ref()?.at_w(p.point.frequency));
            let (measured, predicted) = (both.measured - base_w, both.predicted - base_w);
            (measured > 0.0 && predicted > 0.0).then_some(Compared { measured, predicted })
        },
        predicted: |m, p, f| m.predict(p, f.base.as_ref()).ok()?.dynamic_power_draw.map(|i| i.value),
        log: false,
    },
    Kind {
        name: "time of a batch (ms)",
        held_out: |p, _| p.batch_time_ms,
        predicted: |m, p, f| {
            let throughput = m.predict(p, f.base.as_ref()).ok()?.throughput.value;
            Some(1e3 * f64::from(p.batch) / throughput)
        },
        log: true,
    },
];

/// A coordinate of a point.
struct Along {
    name: &'static str,
    value: fn(&Point) -> f64,
}

const AXES: [Along; 4] = [
    Along { name: "clock (MHz)", value: |p| f64::from(p.frequency.0) },
    Along { name: "batch (items)", value: |p| f64::from(p.batch) },
    Along { name: "share of the SMs (%)", value: |p| 100.0 * p.share.sms() },
    Along { name: "processes", value: |p| f64::from(p.processes) },
];
/// Points of a line of a surface.
const STEPS: usize = 40;

/// The page; `name` of the file is for its text.
pub fn html(file: &ModelFile, name: &str) -> Result<String> {
    let gpu = file.gpu_name.as_deref().unwrap_or("a GPU that the profile does not name");
    let mut page = Page::new(&format!("gpumon: models on {gpu}"), file.simulated);
    page.text(&format!("The model file {name}, written by gpumon {}.", file.gpumon_version));
    page.heading("How far off");
    page.text(
        "Errors at points that were left out of the fit in turn, %: median / mean / 90th percentile. Intervals: what a prediction is \
         multiplied with for its 90 % interval.",
    );
    page.preformatted(&table(file).to_string());
    for missing in &file.not_fitted {
        page.text(&format!("Not fitted: {}: {}", missing.model, missing.reason));
    }
    if let Some(together) = &file.colocation {
        page.text(
            "Models together on one GPU; errors on sets left out in turn, %: mean / median / worst, at the power limit mean / worst; \
             90 % intervals: measured values inside / mean width, %",
        );
        page.preformatted(&quality::table(&together.quality));
    }
    let figures: Vec<Figure> =
        KINDS.iter().map(|kind| figure(file, kind)).filter(|f| !f.points.is_empty()).collect();
    page.heading("Prediction against measurement");
    if figures.is_empty() {
        page.text(
            "The file keeps no points that were left out: it has too few points, or is of an older gpumon; fit the profile again.",
        );
    } else {
        page.text("Each point is predicted by a fit without it.");
        page.svg(&held_out::svg(&page.title_of("Held-out points"), &figures)?);
    }
    for model in &file.models {
        page.heading(&model.name);
        section(&mut page, model, file)?;
    }
    Ok(page.finish())
}

fn figure(file: &ModelFile, kind: &Kind) -> Figure {
    let points = file.models.iter().flat_map(|model| {
        let compared = model.held_out_points.iter().filter_map(|p| (kind.held_out)(p, file));
        compared.map(|c| (model.name.clone(), c.measured, c.predicted))
    });
    Figure { name: kind.name.into(), points: points.collect() }
}

fn table(file: &ModelFile) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header([
        "model",
        "form",
        "points",
        "total power",
        "its interval",
        "dynamic power",
        "its interval",
        "batch time",
        "interval of the throughput",
    ]);
    let errors = |stats: Option<ErrorStats>| {
        stats.map_or("–".into(), |e| format!("{:.2} / {:.2} / {:.2}", e.median_pct, e.mean_pct, e.p90_pct))
    };
    let factors =
        |pair: Option<[f64; 2]>| pair.map_or("–".into(), |[low, high]| format!("{low:.3} … {high:.3}"));
    for model in &file.models {
        let (held_out, intervals) = (&model.held_out, &model.intervals);
        table.add_row([
            model.name.clone(),
            model.surfaces.form().name().into(),
            model.rows.points.to_string(),
            errors(held_out.total_power),
            factors(intervals.avg_power_draw),
            errors(held_out.dynamic_power),
            factors(intervals.dynamic_power_draw),
            errors(held_out.batch_time),
            factors(intervals.throughput),
        ]);
    }
    table.column_iter_mut().skip(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// What is told of one model.
fn section(page: &mut Page, model: &Model, file: &ModelFile) -> Result<()> {
    for note in &model.notes {
        page.text(note);
    }
    let rows = residuals(model, file);
    if !rows.is_empty() {
        page.small_heading("Residuals along each axis");
        let title = format!("{}: predicted above measured, %", model.name);
        page.svg(&panels::svg(
            &page.title_of(&title),
            &["a point that the fit did not see".into()],
            panels::LOW,
            &rows,
        )?);
    }
    let grid = Grid::of(model);
    let at = format!("batch {} along the clock, {} MHz along the batch", grid.batch(), grid.mhz());
    let shares: Vec<String> = grid.shares.iter().map(|s| share_name(*s)).collect();
    let batches: Vec<String> = grid.batches.iter().map(|b| format!("batch {b}")).collect();
    let by_share: [Slice; 2] = [
        |grid, share, x| grid.point(grid.batch(), share, x),
        |grid, share, x| grid.point(x.round() as u32, share, f64::from(grid.mhz())),
    ];
    let rows = surfaces(model, file, &grid, &by_share);
    if !rows.is_empty() {
        page.small_heading("Surfaces, a line a share");
        page.svg(&panels::svg(
            &page.title_of(&format!("{}: {at}", model.name)),
            &shares,
            panels::LOW,
            &rows,
        )?);
    }
    let rows = along_share(model, file, &grid);
    if !rows.is_empty() {
        page.small_heading("Surfaces along the share, a line a batch");
        page.svg(&panels::svg(
            &page.title_of(&format!("{}: {} MHz", model.name, grid.mhz())),
            &batches,
            panels::LOW,
            &rows,
        )?);
    }
    Ok(())
}

/// A row a figure, a panel an axis with several levels.
fn residuals(model: &Model, file: &ModelFile) -> Vec<Vec<Panel>> {
    let points = &model.held_out_points;
    let row = |kind: &Kind| {
        let off: Vec<(&Point, f64)> = points
            .iter()
            .filter_map(|p| {
                (kind.held_out)(p, file).map(|c| (&p.point, 100.0 * (c.predicted / c.measured - 1.0)))
            })
            .collect();
        let y = Axis::of_values(
            &format!("{}: off by, %", kind.name),
            false,
            off.iter().map(|o| o.1).chain([0.0]),
        )?;
        let panel = |along: &Along| {
            let x = Axis::of_levels(along.name, &levels(off.iter().map(|o| (along.value)(o.0))))?;
            let [lowest, highest] = x.range;
            Some(Panel {
                x,
                y: y.clone(),
                reference: vec![(lowest, 0.0), (highest, 0.0)],
                lines: vec![],
                dots: off.iter().map(|(point, off)| (0, (along.value)(point), *off)).collect(),
            })
        };
        let row: Vec<Panel> = AXES.iter().filter_map(panel).collect();
        (!row.is_empty()).then_some(row)
    };
    KINDS.iter().filter_map(row).collect()
}

/// The values, ascending, each once.
fn levels(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut levels: Vec<f64> = values.collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup_by(|a, b| (*a - *b).abs() < 1e-6);
    levels
}

/// The levels of a model.
struct Grid {
    shares: Vec<Share>,
    batches: Vec<u32>,
    clocks: Vec<u32>,
    processes: u32,
}

impl Grid {
    fn of(model: &Model) -> Self {
        let points = || model.held_out_points.iter().map(|p| p.point);
        let ranges = &model.ranges;
        let span = |[low, high]: [u32; 2]| levels([f64::from(low), f64::from(high)].into_iter());
        let whole = |levels: Vec<f64>| levels.into_iter().map(|v| v as u32).collect::<Vec<_>>();
        let known = !model.held_out_points.is_empty();
        let slices = SEVEN_SLICES.profiles.iter().map(|p| Share::Slices(p.slices));
        let within = |s: &Share| (ranges.share[0] - 1e-6..=ranges.share[1] + 1e-6).contains(&s.sms());
        let mut shares: Vec<Share> = if known {
            points().map(|p| p.share).collect()
        } else {
            let sms = model.shares.iter().map(|s| Share::Sms(*s));
            slices.filter(|_| ranges.mig).chain(sms).filter(within).collect()
        };
        shares.sort_by(|a, b| a.sms().total_cmp(&b.sms()));
        shares.dedup();
        Self {
            shares,
            batches: whole(if known {
                levels(points().map(|p| f64::from(p.batch)))
            } else {
                span(ranges.batch)
            }),
            clocks: whole(if known {
                levels(points().map(|p| f64::from(p.frequency.0)))
            } else {
                span(ranges.frequency_mhz)
            }),
            processes: ranges.processes[0],
        }
    }

    /// The batch where none is varied: the middle one.
    fn batch(&self) -> u32 {
        self.batches.get(self.batches.len() / 2).copied().unwrap_or(1)
    }

    /// The clock where none is varied: the highest.
    fn mhz(&self) -> u32 {
        self.clocks.last().copied().unwrap_or(1)
    }

    fn point(&self, batch: u32, share: Share, mhz: f64) -> Point {
        Point { batch, share, frequency: Megahertz(mhz.round() as u32), processes: self.processes }
    }
}

fn share_name(share: Share) -> String {
    match share {
        Share::Slices(slices) => format!("{slices}/7 (MIG)"),
        Share::Sms(share) => format!("{:.0} % of the SMs", 100.0 * share),
    }
}

/// The point of a surface at this place of an axis.
type Slice = fn(&Grid, Share, f64) -> Point;

/// Along clock and batch.
fn surfaces(model: &Model, file: &ModelFile, grid: &Grid, slices: &[Slice; 2]) -> Vec<Vec<Panel>> {
    let levels = [&grid.clocks, &grid.batches].map(|l| l.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
    let row = |kind: &Kind| {
        let panel = |((slice, levels), along): ((&Slice, &Vec<f64>), &Along)| {
            let x = Axis::of_levels(along.name, levels)?;
            let places = between(levels);
            let line = |share: &Share| {
                let value = |x: &f64| {
                    let point = slice(grid, *share, *x);
                    Some(((along.value)(&point), (kind.predicted)(model, &point, file)?))
                };
                places.iter().filter_map(value).collect::<Vec<_>>()
            };
            let lines = grid.shares.iter().map(line).enumerate().collect();
            let dots = model.held_out_points.iter().filter_map(|p| {
                let at = grid.shares.iter().position(|s| *s == p.point.share)?;
                let x = (along.value)(&p.point);
                (slice(grid, p.point.share, x) == p.point).then_some((
                    at,
                    x,
                    (kind.held_out)(p, file)?.measured,
                ))
            });
            panel(kind, x, lines, dots.collect())
        };
        let row: Vec<Panel> = slices.iter().zip(&levels).zip(&AXES).filter_map(panel).collect();
        (!row.is_empty()).then_some(row)
    };
    KINDS.iter().filter_map(row).collect()
}

/// Along the shares that were measured: what lies between those of MIG does not exist.
fn along_share(model: &Model, file: &ModelFile, grid: &Grid) -> Vec<Vec<Panel>> {
    let along = &AXES[2];
    let share_levels = levels(grid.shares.iter().map(|s| 100.0 * s.sms()));
    let one = |kind: &Kind| {
        let x = Axis::of_levels(along.name, &share_levels)?;
        let mhz = f64::from(grid.mhz());
        let line = |batch: &u32| {
            let value = |share: &Share| {
                let point = grid.point(*batch, *share, mhz);
                Some(((along.value)(&point), (kind.predicted)(model, &point, file)?))
            };
            grid.shares.iter().filter_map(value).collect::<Vec<_>>()
        };
        let lines = grid.batches.iter().map(line).enumerate().collect();
        let dots = model.held_out_points.iter().filter_map(|p| {
            let at = grid.batches.iter().position(|b| *b == p.point.batch)?;
            let same = grid.point(p.point.batch, p.point.share, mhz) == p.point;
            same.then_some((at, (along.value)(&p.point), (kind.held_out)(p, file)?.measured))
        });
        panel(kind, x, lines, dots.collect())
    };
    let row: Vec<Panel> = KINDS.iter().filter_map(one).collect();
    if row.is_empty() { vec![] } else { vec![row] }
}

fn panel(
    kind: &Kind,
    x: Axis,
    lines: Vec<(usize, Vec<(f64, f64)>)>,
    dots: Vec<(usize, f64, f64)>,
) -> Option<Panel> {
    let values = lines.iter().flat_map(|(_, line)| line.iter().map(|p| p.1)).chain(dots.iter().map(|d| d.2));
    let y = Axis::of_values(kind.name, kind.log, values)?;
    Some(Panel { x, y, reference: vec![], lines, dots })
}

/// Places from the first level to the last, equal ratios apart.
fn between(levels: &[f64]) -> Vec<f64> {
    let (Some(first), Some(last)) = (levels.first(), levels.last()) else { return vec![] };
    let step = |i: usize| first * (last / first).powf(i as f64 / STEPS as f64);
    let mut places: Vec<f64> = (0..=STEPS).map(|i| step(i).round()).collect();
    places.dedup();
    places
}
