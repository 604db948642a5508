//! The picture as SVG.
//!
//! Rule: the average is grey and thick, before the quick curve, blue and thin: told apart without colours, too.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::decimate::{Curve, Point};
use super::style::{FAINT, FONT_UNIT, GRID, INK, SCALE, font, label, printable, shown};
use super::{Panel, Picture};

/// Width, pixels drawn.
const WIDTH: u32 = 960 * SCALE;
/// Height of title and legend.
const HEAD: u32 = 92 * SCALE;
/// Height of a panel: of the only one, of one of several.
const PANEL: (u32, u32) = (330 * SCALE, 230 * SCALE);
const MARGIN: i32 = 20 * SCALE as i32;

const AVERAGE: RGBColor = RGBColor(0x5A, 0x5A, 0x5A);
const QUICK: RGBColor = RGBColor(0x00, 0x72, 0xB2);
const AVERAGE_WIDTH: u32 = 3 * SCALE;
const QUICK_WIDTH: u32 = 3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws.
pub fn svg(picture: &Picture) -> Result<String> {
    let panels = u32::try_from(picture.panels.len())?;
    let panel = if panels == 1 { PANEL.0 } else { PANEL.1 };
    let height = HEAD + panels * panel;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, rest) = root.split_vertically(HEAD);
        draw_head(&head, picture)?;
        for (panel, area) in picture.panels.iter().zip(rest.split_evenly((picture.panels.len(), 1))) {
            draw_panel(&area, panel, picture)?;
        }
        root.present()?;
    }
    Ok(shown(&text, (WIDTH, height), &format!("{}. {}", picture.title, picture.subtitle)))
}

fn draw_head(area: &Area, picture: &Picture) -> Result<()> {
    let s = SCALE as i32;
    let bold = FontDesc::new(FontFamily::SansSerif, f64::from(19 * SCALE) * FONT_UNIT, FontStyle::Bold);
    area.draw_text(&printable(&picture.title), &TextStyle::from(bold).color(&INK), (MARGIN, 16 * s))?;
    area.draw_text(&printable(&picture.subtitle), &font(13, &FAINT), (MARGIN, 42 * s))?;
    let has_average = picture.panels.iter().any(|p| p.average.readings > 0);
    let average = has_average.then(|| ("the driver's 1 s average".to_owned(), AVERAGE, AVERAGE_WIDTH));
    let span_us = picture.span.1 - picture.span.0;
    let quick =
        picture.panels.iter().find_map(|p| p.quick(span_us)).map(|(_, name)| (name, QUICK, QUICK_WIDTH));
    let mut x = MARGIN;
    for (name, color, width) in average.into_iter().chain(quick) {
        let y = 76 * s;
        area.draw(&PathElement::new([(x, y), (x + 26 * s, y)], color.stroke_width(width)))?;
        let style = font(13, &INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw_text(&name, &style, (x + 33 * s, y))?;
        // About the width of the text.
        x += 33 * s + 8 * s * i32::try_from(name.chars().count())?;
    }
    Ok(())
}

fn draw_panel(area: &Area, panel: &Panel, picture: &Picture) -> Result<()> {
    let s = SCALE as i32;
    let (unit, unit_us) = time_unit(picture.span.1 - picture.span.0);
    let time = |us: i64| us as f64 / unit_us;
    let quick = panel.quick(1).map(|(curve, _)| curve);
    let top = quick.and_then(Curve::max).into_iter().chain(panel.average.max()).fold(1.0, f64::max);
    let area = if picture.panels.len() > 1 {
        area.draw_text(&printable(&panel.name), &font(12, &INK), (MARGIN, 8 * s))?;
        area.margin(22 * s, 0, 0, 0)
    } else {
        area.clone()
    };
    let mut chart = ChartBuilder::on(&area)
        .margin_left(10 * s)
        .margin_right(24 * s)
        .margin_top(8 * s)
        .margin_bottom(8 * s)
        .x_label_area_size(44 * s)
        .y_label_area_size(56 * s)
        .build_cartesian_2d(time(picture.span.0)..time(picture.span.1), 0.0..top * 1.06)?;
    chart
        .configure_mesh()
        .bold_line_style(GRID.stroke_width(SCALE))
        .light_line_style(TRANSPARENT)
        .axis_style(FAINT.stroke_width(SCALE))
        .x_labels(8)
        .y_labels(6)
        .x_desc(format!("time since the start of the recording ({unit})"))
        .y_desc("power (W)")
        .label_style(font(12, &INK))
        .axis_desc_style(font(12, &INK))
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .draw()?;
    let place = |&(us, watts): &Point| (time(us), watts);
    let average = (&panel.average, AVERAGE, AVERAGE_WIDTH);
    let quick = quick.map(|curve| (curve, QUICK, QUICK_WIDTH));
    for (curve, color, width) in quick.into_iter().chain([average]) {
        for piece in &curve.pieces {
            match piece.as_slice() {
                [only] => chart.draw_series([Circle::new(place(only), width, color.filled())])?,
                line => {
                    chart.draw_series(LineSeries::new(line.iter().map(place), color.stroke_width(width)))?
                }
            };
        }
    }
    Ok(())
}

/// Unit of the time axis for a span, and its length in µs.
fn time_unit(span_us: i64) -> (&'static str, f64) {
    match span_us {
        us if us >= 3 * 3_600_000_000 => ("h", 3.6e9),
        us if us >= 600_000_000 => ("min", 6e7),
        _ => ("s", 1e6),
    }
}
