//! Panels beside and below each other: lines and dots over one axis each.
//!
//! Rule: an axis is linear or logarithmic and has its ticks where it is told; colours are those of the legend, in its order, and begin
//! again after the last. Dots are one path a colour, so that thousands of them stay a few bytes each.
//! Not done here: choosing what to show.

use std::error::Error;
use std::fmt::Write as _;

use anyhow::{Result, anyhow, bail};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::style::{DISTINCT, FAINT, GRID, INK, SCALE, font, label, printable, shown};

/// Width, pixels drawn.
const WIDTH: u32 = 960 * SCALE;
/// Height of the title, and of a line of the legend.
const HEAD: u32 = 34 * SCALE;
const LEGEND: u32 = 22 * SCALE;
/// Height of a row of panels, pixels shown: as usual, and of panels that stand alone.
pub const LOW: u32 = 250;
pub const TALL: u32 = 400;
/// About the width of a character of the legend, and of its mark with the space around, pixels drawn.
const CHARACTER: usize = 7 * SCALE as usize;
const MARK: usize = 34 * SCALE as usize;

/// What an axis shows.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it is, with its unit.
    pub name: String,
    /// Whether equal ratios are equal lengths; all values are then above 0.
    pub log: bool,
    /// Least and greatest value, which differ.
    pub range: [f64; 2],
    /// Where labels stand.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// Ticks at these levels but for those too near to the next; a little room beside the first and the last. `None` for fewer than
    /// two levels.
    pub fn of_levels(name: &str, levels: &[f64]) -> Option<Self> {
        let (first, last) = (*levels.first()?, *levels.last()?);
        let (room, apart) = ((last / first).powf(0.06), (last / first).powf(0.14));
        let mut ticks: Vec<f64> = vec![last];
        for level in levels.iter().rev() {
            if ticks.last().is_some_and(|next| level * apart <= *next) {
                ticks.push(*level);
            }
        }
        (first > 0.0 && last > first).then(|| Self {
            name: name.into(),
            log: true,
            range: [first / room, last * room],
            ticks,
        })
    }

    /// Round ticks over the span of values; `None` without any.
    pub fn of_values(name: &str, log: bool, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values = values.into_iter().filter(|v| v.is_finite() && (!log || *v > 0.0));
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            return None;
        }
        let (low, high) = match log {
            true => (low / 1.1, high * 1.1),
            false if high > low => (low - 0.05 * (high - low), high + 0.05 * (high - low)),
            false => (low - 1.0, high + 1.0),
        };
        let ticks = if log { decades(low, high) } else { steps(low, high) };
        Some(Self { name: name.into(), log, range: [low, high], ticks })
    }

    fn place(&self, value: f64) -> f64 {
        if self.log { value.ln() } else { value }
    }

    fn coordinates(&self) -> Coordinates {
        let [low, high] = self.range.map(|v| self.place(v));
        Coordinates { range: (low..high).into(), ticks: self.ticks.iter().map(|v| self.place(*v)).collect() }
    }

    fn label(&self, at: &f64) -> String {
        let value = if self.log { at.exp() } else { *at };
        label(&if value >= 10.0 { (value * 10.0).round() / 10.0 } else { value })
    }
}

/// The library's axis, with the ticks of ours.
struct Coordinates {
    range: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Ranged for Coordinates {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        self.range.map(value, pixels)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.range()
    }
}

/// Multiples of 1, 2 or 5 times a power of ten, about six of them.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
    let first = (low / step).ceil();
    (0..16).map(|i| (first + f64::from(i)) * step).take_while(|v| *v <= high).collect()
}

/// 1, 2 and 5 of each decade, or 1 only where there are many.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let within: &[f64] = if (high / low).log10() > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = powers.flat_map(|p| within.iter().map(move |m| m * 10f64.powi(p)));
    all.filter(|v| (low..=high).contains(v)).collect()
}

/// One panel.
pub struct Panel {
    pub x: Axis,
    pub y: Axis,
    /// A faint line, such as that of perfect predictions.
    pub reference: Vec<(f64, f64)>,
    /// Lines, each with its place in the legend.
    pub lines: Vec<(usize, Vec<(f64, f64)>)>,
    /// Dots, each with its place in the legend.
    pub dots: Vec<(usize, f64, f64)>,
}

/// Draws rows of panels of this height as SVG; `legend` names the colours.
pub fn svg(title: &str, legend: &[String], height: u32, rows: &[Vec<Panel>]) -> Result<String> {
    if rows.is_empty() || rows.iter().any(Vec::is_empty) {
        bail!("there is nothing to draw");
    }
    draw(title, legend, height * SCALE, rows).map_err(|e| anyhow!("cannot draw: {e}"))
}

fn draw(title: &str, legend: &[String], height: u32, rows: &[Vec<Panel>]) -> Result<String, Box<dyn Error>> {
    let s = SCALE as i32;
    let marks = marks(legend);
    let lines = marks.last().map_or(0, |(line, _)| line + 1);
    let head = HEAD + LEGEND * u32::try_from(lines)?;
    let size = (WIDTH, head + height * u32::try_from(rows.len())?);
    let (mut text, mut dots) = (String::new(), String::new());
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (top, rest) = root.split_vertically(head);
        top.draw_text(&printable(title), &font(15, &INK), (20 * s, 10 * s))?;
        for (at, (name, (line, x))) in legend.iter().zip(marks).enumerate() {
            let (x, y) = (i32::try_from(x)?, (HEAD + LEGEND / 2) as i32 + LEGEND as i32 * line as i32);
            top.draw(&Circle::new((x, y), 4 * s, color(at).filled()))?;
            let style = font(12, &INK).pos(Pos::new(HPos::Left, VPos::Center));
            top.draw_text(&printable(name), &style, (x + 10 * s, y))?;
        }
        for (panels, row) in rows.iter().zip(rest.split_evenly((rows.len(), 1))) {
            for (panel, area) in panels.iter().zip(row.split_evenly((1, panels.len().max(2)))) {
                let mut chart = ChartBuilder::on(&area)
                    .margin(10 * s)
                    .x_label_area_size(40 * s)
                    .y_label_area_size(54 * s)
                    .build_cartesian_2d(panel.x.coordinates(), panel.y.coordinates())?;
                chart
                    .configure_mesh()
                    .bold_line_style(GRID.stroke_width(SCALE))
                    .light_line_style(TRANSPARENT)
                    .axis_style(FAINT.stroke_width(SCALE))
                    .x_desc(&panel.x.name)
                    .y_desc(&panel.y.name)
                    .label_style(font(11, &INK))
                    .axis_desc_style(font(12, &INK))
                    .x_label_formatter(&|v| panel.x.label(v))
                    .y_label_formatter(&|v| panel.y.label(v))
                    .draw()?;
                let place = |x: f64, y: f64| (panel.x.place(x), panel.y.place(y));
                let reference = panel.reference.iter().map(|(x, y)| place(*x, *y));
                chart.draw_series(LineSeries::new(reference, FAINT.stroke_width(SCALE)))?;
                for (at, points) in &panel.lines {
                    let points = points.iter().map(|(x, y)| place(*x, *y));
                    chart.draw_series(LineSeries::new(points, color(*at).stroke_width(3)))?;
                }
                for at in 0..legend.len() {
                    let mut path = String::new();
                    for (_, x, y) in panel.dots.iter().filter(|(of, ..)| *of == at) {
                        let (x, y) = chart.backend_coord(&place(*x, *y));
                        write!(path, "M{x} {y}h0")?;
                    }
                    if !path.is_empty() {
                        let RGBColor(r, g, b) = color(at);
                        writeln!(
                            dots,
                            "<path d=\"{path}\" fill=\"none\" stroke=\"rgb({r},{g},{b})\" stroke-opacity=\"0.6\" \
                             stroke-width=\"{}\" stroke-linecap=\"round\"/>",
                            6 * SCALE
                        )?;
                    }
                }
            }
        }
        root.present()?;
    }
    let end = text.rfind("</svg>").unwrap_or(text.len());
    text.insert_str(end, &dots);
    Ok(shown(&text, size, title))
}

fn color(at: usize) -> RGBColor {
    DISTINCT[at % DISTINCT.len()]
}

/// The line and the x of each mark of the legend.
fn marks(legend: &[String]) -> Vec<(usize, usize)> {
    let start = 24 * SCALE as usize;
    let (mut line, mut x) = (0, start);
    let mut marks = Vec::new();
    for name in legend {
        let width = MARK + CHARACTER * name.chars().count();
        if x > start && x + width > WIDTH as usize {
            (line, x) = (line + 1, start);
        }
        marks.push((line, x));
        x += width;
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        let axis = |log, values: [f64; 2]| Axis::of_values("", log, values).unwrap().ticks;
        assert_eq!(axis(false, [0.0, 100.0]), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(axis(true, [1.0, 30.0]), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(axis(true, [0.1, 1000.0]), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert!(Axis::of_values("", true, [f64::NAN, -1.0]).is_none());
        assert!(Axis::of_levels("", &[4.0]).is_none());
        assert_eq!(Axis::of_levels("", &[1.0, 2.0, 4.0]).unwrap().ticks, [4.0, 2.0, 1.0]);
    }

    #[test]
    fn what_is_given_is_drawn() {
        let axis = || Axis::of_values("x <y>", true, [1.0, 10.0]).unwrap();
        let dots = vec![(0, 1.0, 2.0), (1, 3.0, 3.0), (1, 4.0, 4.0)];
        let panel = Panel {
            x: axis(),
            y: axis(),
            reference: vec![],
            lines: vec![(0, vec![(1.0, 1.0), (9.0, 9.0)])],
            dots,
        };
        let svg = svg("a <b>", &["one".into(), "two".into()], LOW, &[vec![panel]]).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let paths: Vec<usize> = document
            .descendants()
            .filter(|n| n.has_tag_name("path"))
            .map(|n| n.attribute("d").unwrap().matches("h0").count())
            .collect();
        assert_eq!(paths, [1, 2]);
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("x &lt;y&gt;"));
        assert!(super::svg("t", &[], LOW, &[]).is_err());
    }
}
