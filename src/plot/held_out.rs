//! Predictions against measurements, at points that the fit did not see.
//!
//! Rule: one panel a figure, both axes in its unit and logarithmic, a colour a model; a perfect prediction lies on the
//! line. What was simulated says so in the title.
//! Not done here: figures that some points lack are drawn for the others.

use std::error::Error;

use anyhow::{Result, anyhow, bail};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::style::{DISTINCT, FAINT, GRID, INK, SCALE, font, label, printable, shown};

/// Width and height, pixels drawn.
const SIZE: (u32, u32) = (960 * SCALE, 500 * SCALE);
/// Height of title and legend.
const HEAD: u32 = 76 * SCALE;

/// One figure of all models.
pub struct Figure {
    /// What it is, with its unit.
    pub name: String,
    /// Model, measured, predicted; both above 0.
    pub points: Vec<(String, f64, f64)>,
}

/// Draws figures beside each other as SVG.
pub fn svg(title: &str, figures: &[Figure]) -> Result<String> {
    if figures.is_empty() || figures.iter().any(|f| f.points.is_empty()) {
        bail!("there is nothing to draw: no point was held out");
    }
    let mut models: Vec<&str> = Vec::new();
    for (model, ..) in figures.iter().flat_map(|f| &f.points) {
        if !models.contains(&model.as_str()) {
            models.push(model);
        }
    }
    let mut text = String::new();
    draw(&mut text, title, figures, &models).map_err(|e| anyhow!("cannot draw: {e}"))?;
    Ok(shown(&text, SIZE, title))
}

fn draw(text: &mut String, title: &str, figures: &[Figure], models: &[&str]) -> Result<(), Box<dyn Error>> {
    let s = SCALE as i32;
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, rest) = root.split_vertically(HEAD);
    head.draw_text(&printable(title), &font(15, &INK), (20 * s, 12 * s))?;
    let (mut x, y) = (24 * s, 56 * s);
    for (at, model) in models.iter().enumerate() {
        head.draw(&Circle::new((x, y), 4 * s, DISTINCT[at % DISTINCT.len()].filled()))?;
        head.draw_text(
            &printable(model),
            &font(12, &INK).pos(Pos::new(HPos::Left, VPos::Center)),
            (x + 10 * s, y),
        )?;
        // About the width of the text.
        x += 30 * s + 7 * s * i32::try_from(model.chars().count())?;
    }
    for (figure, area) in figures.iter().zip(rest.split_evenly((1, figures.len()))) {
        let values = figure.points.iter().flat_map(|(_, m, p)| [*m, *p]);
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let range = || (low / 1.1..high * 1.1).log_scale();
        let mut chart = ChartBuilder::on(&area)
            .margin(12 * s)
            .x_label_area_size(44 * s)
            .y_label_area_size(56 * s)
            .build_cartesian_2d(range(), range())?;
        chart
            .configure_mesh()
            .bold_line_style(GRID.stroke_width(SCALE))
            .light_line_style(TRANSPARENT)
            .axis_style(FAINT.stroke_width(SCALE))
            .x_desc(format!("measured {}", figure.name))
            .y_desc(format!("predicted {}", figure.name))
            .label_style(font(12, &INK))
            .axis_desc_style(font(12, &INK))
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .draw()?;
        chart.draw_series(LineSeries::new([(low, low), (high, high)], FAINT.stroke_width(SCALE)))?;
        for (at, name) in models.iter().enumerate() {
            let color = DISTINCT[at % DISTINCT.len()].mix(0.6).filled();
            let of_model = figure.points.iter().filter(|(model, ..)| model == name);
            chart.draw_series(of_model.map(|(_, m, p)| Circle::new((*m, *p), 3 * s, color)))?;
        }
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_drawn_and_nothing_is_an_error() {
        let point = |model: &str, m: f64| (model.to_owned(), m, m * 1.1);
        let figure = |points| Figure { name: "power (W)".into(), points };
        let svg = svg("a <b>", &[figure(vec![point("x", 50.0), point("y", 90.0)])]).unwrap();
        assert_eq!(svg.matches("<circle").count(), 4, "two points and two in the legend");
        assert!(roxmltree::Document::parse(&svg).is_ok() && svg.contains("a &lt;b&gt;"));
        assert!(super::svg("t", &[figure(vec![])]).is_err());
    }
}
